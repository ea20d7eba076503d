"""What anybody sends costs little: every field of every form and body at its full length, with what
parsers like least. Counted is what the longest step of the event loop calls.
"""

import asyncio
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
import pytest_asyncio

from server.api.routes import ROUTES
from server.domain.field_values import FIELDS
from server.web import routes as pages
from server.web.site import compile_template, template_names
from tests.kit.cost import steps
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, driving

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOST_CALLS = 500_000
"""Of functions: a list has up to 10,000 values, and each costs some tens."""
PATTERNS = [
    "exit:1,", "1,", "0-1,", "9", "a,", "a*", "**/", "[", "{", "%", "1d", "1.", "\\", '"', " ",
    "=\n", "a=b\n", "a.", ":", "<", "é", "\u0300", "\u202e", "timeout,",
]  # fmt: skip
FORM = {"user_id": "ann", "service": "my_service"}
OF_FORMS = [*FIELDS, "user_id", "service", "cron", "time_zone", "overlap", "missed"]
KIND = "application/x-www-form-urlencoded"


@contextmanager
def longest_step() -> Iterator[list[tuple[int, str]]]:
    """How many functions, Python's and C's, a callback of event loops calls, and which it is."""
    longest, run = [(0, "")], asyncio.Handle._run

    def counted(handle: asyncio.Handle) -> Any:
        given: list[Any] = []
        calls = steps(lambda: given.append(run(handle)))
        longest[0] = max(longest[0], (calls, repr(handle)))
        return given[0]

    asyncio.Handle._run = counted  # type: ignore[method-assign,assignment]
    try:
        yield longest
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(module_folder: Path):
    async with driving(module_folder, FakeOrchestrator()) as found:
        for name in template_names():  # each once, and not by whoever asks first
            compile_template(name)
        assert await found.upload() == 1
        yield found


OF_PATHS = {"id": "1", "name": "another", "token": "abc", "schedule": "1"}


async def send(caller: Any, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    """Its status, unless a step of it costs too much."""
    # With any Authorization, a form need not be one of our pages.
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"Authorization": "Basic x"} | named
    with longest_step() as found:
        async with caller.session.request(
            method, caller.url + path, data=io.BytesIO(body), headers=given, allow_redirects=False
        ) as answer:
            await answer.read()
    what = f"{method} {path} {body[:200]!r} {headers}: {answer.status}"
    ((calls, step),) = found
    assert calls < MOST_CALLS, f"{calls} calls, {step}, of {what}"
    assert answer.status != 500, what
    return int(answer.status)


def multipart(fields: Mapping[str, str]) -> bytes:
    head = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    text = "".join(head.format(name, value) for name, value in fields.items())
    file = b'--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n'
    return text.encode() + file + RUN + b"\r\n--b--\r\n"


def full(pattern: str, size: int) -> str:
    return pattern * (size // len(pattern.encode()))


async def test_fields_of_an_upload(caller):
    kind = "multipart/form-data; boundary=b"
    for pattern in PATTERNS:
        # The page's form says what is wrong with each of its fields.
        wrong = {name: full(pattern, 60_000) for name in [*OF_FORMS, "script"]}
        assert await send(caller, "POST", "/new", multipart(wrong), Content_Type=kind) >= 400
    for name in OF_FORMS:
        fields = FORM | {"name": "n", "cron": "1 1 1 1 1", name: full("exit:1,", 60_000)}
        body = multipart(fields)
        assert await send(caller, "POST", "/api/v1/schedules", body, Content_Type=kind) >= 400
        del fields["cron"]
        if name in fields:
            body = multipart(fields)
            assert await send(caller, "POST", "/upload", body, Content_Type=kind) >= 400


async def test_what_the_page_asks_before_it_sends(caller):
    for pattern in PATTERNS:
        size = len(json.dumps(pattern, ensure_ascii=False).encode()) - 2
        for name in ("retry_on", "outputs", "array", "meta", "zzz"):
            text = pattern * (60_000 // size)
            fields = json.dumps({"fields": FORM | {name: text}}, ensure_ascii=False)
            assert await send(caller, "POST", "/new/check", fields.encode()) == 200
    fields = json.dumps({"fields": {"retry_on": "exit:1," * 10_000}})
    assert await send(caller, "POST", "/new/check", fields.encode()) == 413


def bodies() -> Iterator[tuple[str, str, str, dict[str, Any], int]]:
    """Method, path, key, and the rest of the body, for each key of each body in JSON."""
    for route in ROUTES:
        if route.body is not None and route.body.media.endswith("json"):
            path = route.path.format_map(OF_PATHS)
            most = 255 << 10 if route.method == "PUT" else 63 << 10
            for key in (*route.body.schema["properties"], "zzz"):
                rest = {one: value for one, value in route.body.example.items() if one != key}
                yield route.method, path, key, rest, most


async def test_bodies_in_json(caller):
    for method, path, key, rest, most in bodies():
        size = most - len(json.dumps(rest)) - len(key) - 16
        values = [
            '"' + full("exit:1,", size) + '"',
            "[" + full("1,", 9_990) + "1]",  # few enough to be looked at
            "{" + ",".join(f'"{"x" * 40}{number}":1' for number in range(1_000)) + "}",
        ]
        if key == "zzz":
            values += [
                "[" + full("1,", size) + "1]",
                "{" + ",".join(f'"{number}":1' for number in range(size // 10)) + "}",
                full("[", size // 2) + full("]", size // 2),
                full("9", size),
            ]
        for value in values:
            body = f"{json.dumps(rest)[:-1]}{', ' if rest else ''}{json.dumps(key)}: {value}}}"
            await send(caller, method, path, body.encode())
    for many in (
        "{" + ",".join(f'"{number}":1' for number in range(20_000)) + "}",
        '{"retry_delays": [' + full("1,", 200_000) + "1]}",
    ):
        assert await send(caller, "PUT", "/api/v1/services/another", many.encode()) == 400


async def test_forms_of_pages(caller):
    templates = (Path(pages.__file__).parent / "templates").rglob("*.html")
    inputs = [re.findall(r'name="([a-z_.]+)"', file.read_text()) for file in templates]
    names, most = sorted({name for some in inputs for name in some}), 255 << 10
    assert len(names) > 10
    posted = [one for one in pages.ROUTES if one.method == "POST" and not one.files]
    for path in {one.path for one in posted} - {"/new/check"}:
        path = path.format_map(OF_PATHS)
        for pattern in ("exit:1,", "=\n", "%", "<"):
            text = quote_plus(pattern) if pattern != "%" else pattern
            for some in (names, names[::2], names[1::2]):
                each = full(text, most // len(some) - 40)
                body = "&".join(f"{name}={each}" for name in some)
                await send(caller, "POST", path, body.encode(), Content_Type=KIND)
        for sent in (full("&", most).encode(), full("a=b&", most).encode(), b"x=\xff"):
            await send(caller, "POST", path, sent, Content_Type=KIND)


@each("pattern", ["a,", '"', "a=b;", 'W/"a",', "0-1,", "(", "=?utf-8?q?a?= "])
async def test_headers(caller, pattern):
    for name in (
        *("Accept", "Cookie", "Range", "If-None-Match", "If-Match", "If-Range", "Authorization"),
        *("Origin", "User-Agent", "Accept-Encoding", "Referer", "Last-Event-ID", "Content-Type"),
        *("Ferryman-Act-As", "Forwarded", "X-Forwarded-For", "Sec-Fetch-Site"),
    ):
        prefix = {"Range": "bytes=", "Content-Type": "a/b;"}.get(name, "")
        value = prefix + full(pattern, 7_900)
        await send(caller, "GET", "/api/v1/jobs/1/logs/stdout", b"", **{name: value})
        await send(caller, "GET", "/jobs/1", b"", **{name: value})


async def test_addresses(caller):
    for path in ("/jobs", "/api/v1/jobs", "/jobs/1/files", "/api/v1/jobs/1/files/x", "/nowhere"):
        for pattern in ("a=b&", "&", "%41", "state=Failed&", "%CC%80"):
            await send(caller, "GET", f"{path}?{full(pattern, 7_500)}")
            await send(caller, "GET", f"{path}/{full(pattern, 7_500)}")
