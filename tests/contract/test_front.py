"""Which requests both programs accept: hosts, origins, tokens, bodies; and what is logged."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import encodings.aliases
import os
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio
import structlog
from structlog.testing import capture_logs

from client_agent.storage.folders import Folders
from server.storage.scratch import FolderScratch
from shared.http import connections
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from tests.kit import raw_http
from tests.kit.agent_http import calling
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import Answer
from tests.kit.server_http import driving
from tests.kit.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "a-token-of-somebody"
OTHER = "a-token-of-another"
PORTAL = "https://portal.example.org"


@dataclass
class Program:
    """One of the two programs, sent raw bytes."""

    name: str
    port: int
    caller: Any

    async def unfinished(self) -> str:
        """The path of something that has not ended."""
        if self.name == "server":
            return f"/download/{await self.caller.upload()}"
        status, reply = await self.caller.submit("1.1")
        assert status == 200
        return f"/retrieve/{reply['id']}"

    def holding(self, data: str) -> contextlib.AbstractAsyncContextManager[None]:
        return raw_http.holding(self.port, data)

    async def wait(self, path: str) -> Answer:
        """A long poll that ends soon, on the program's own clock."""
        asked = asyncio.create_task(self.ask("GET", f"{path}?wait=0.01"))
        while not asked.done():
            if self.name == "agent":
                await self.caller.clock.advance(0.01)
            await asyncio.wait([asked], timeout=0.01)
        return await asked

    async def send(self, data: bytes) -> bytes:
        return await raw_http.send(self.port, data)

    async def ask(self, method: str, path: str, body: str = "", **headers: str) -> Answer:
        return await raw_http.ask(self.port, method, path, body, **headers)

    @property
    def private(self) -> str:
        """A route for callers with a token."""
        return "/api/v1/jobs" if self.name == "server" else "/load"

    @property
    def change(self) -> str:
        return "/terminate/1" if self.name == "server" else "/kill/1"

    @property
    def upload(self) -> str:
        return "/upload" if self.name == "server" else "/submit"


@contextlib.asynccontextmanager
async def serving(name: str, tmp_path, **settings) -> AsyncIterator[Program]:
    async with contextlib.AsyncExitStack() as stack:
        if name == "server":
            caller: Any = await stack.enter_async_context(
                driving(tmp_path, FakeOrchestrator(then="Running"), **settings)
            )
        else:
            caller = await stack.enter_async_context(calling(tmp_path, **settings))
        yield Program(name, int(str(caller.url).rpartition(":")[2].strip("/")), caller)


@pytest.fixture(scope="module", params=["server", "agent"])
def name(request):
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(name, module_folder):
    """One for all tests that change nothing in it."""
    folder = module_folder / name
    folder.mkdir()
    async with serving(name, folder) as found:
        yield found


def guarding(name, folder):
    trusted = {"allowed_origins": [PORTAL]} if name == "server" else {}
    return serving(name, folder, tokens=[TOKEN, OTHER], **trusted)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(name, module_folder):
    """The same, where a token is needed."""
    folder = module_folder / f"{name}-guarded"
    folder.mkdir()
    async with guarding(name, folder) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def unasked(name, tmp_path):
    """As ``guarded``, and nobody has asked it anything yet."""
    async with guarding(name, tmp_path) as found:
        yield found


# -- hosts

STRANGE = ["evil.example", "evil.example:5000", "127.0.0.1.evil.example", "x", "", "10.0.0.1", "[:"]


@pytest.mark.parametrize("host", STRANGE)
async def test_a_name_that_somebody_else_points_here_is_not_answered(program, host):
    answer = await program.ask("GET", program.private, Host=host)
    assert (answer.status, answer.document["code"]) == (421, "unknown_host")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:5"]
)
async def test_names_of_this_machine_are_answered(program, host):
    assert (await program.ask("GET", program.private, Host=host)).status == 200


async def test_names_from_the_settings_are_answered(name, tmp_path):
    hosts = ["jobs.example.org", "*.lab.example"]
    async with serving(name, tmp_path, allowed_hosts=hosts) as program:
        for host, status in {
            "Jobs.Example.Org:443": 200,
            "a.lab.example": 200,
            "lab.example": 421,
            "evil-lab.example": 421,
        }.items():
            assert (await program.ask("GET", program.private, Host=host)).status == status, host


# -- pages


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://other.localhost"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
async def test_a_strangers_page_changes_nothing(program, headers):
    for path in (program.change, program.upload):
        answer = await program.ask("POST", path, **headers)
        assert (answer.status, answer.document["code"]) == (403, "foreign_origin")
        assert "access-control-allow-origin" not in answer.headers
    if program.name == "agent":
        assert (await program.ask("DELETE", "/payloads/1", **headers)).status == 403


async def test_our_own_pages_and_programs_may_change_things(program):
    own = f"http://127.0.0.1:{program.port}"
    for headers in ({}, {"Origin": own}, {"Origin": own, "Sec_Fetch_Site": "same-origin"}):
        assert (await program.ask("POST", program.change, **headers)).status == 404


async def test_a_trusted_page_may_call_and_read_the_answer(guarded):
    if guarded.name == "agent":
        return  # no page calls an agent
    answer = await guarded.ask(
        "OPTIONS",
        guarded.upload,
        Origin=PORTAL,
        Access_Control_Request_Method="POST",
        Sec_Fetch_Site="cross-site",
    )
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == PORTAL
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    shown = {"Authorization": f"Bearer {TOKEN}", "Origin": PORTAL, "Sec_Fetch_Site": "cross-site"}
    answer = await guarded.ask("POST", guarded.change, **shown)
    assert answer.status == 404
    assert answer.headers["access-control-allow-origin"] == PORTAL
    assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
    # The host is allowed; a token is still needed.
    assert (await guarded.ask("POST", guarded.change, Origin=PORTAL)).status == 401


async def test_other_pages_are_refused_at_the_preflight(guarded):
    for origin in ("https://evil.example", f"{PORTAL}.evil.example", "http://portal.example.org"):
        answer = await guarded.ask(
            "OPTIONS", guarded.upload, Origin=origin, Access_Control_Request_Method="POST"
        )
        assert answer.status == 403
        answer = await guarded.ask("GET", guarded.private, Origin=origin)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers.get("vary", "Origin") == "Origin"


# -- tokens


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer \xff",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer " + "9" * 7_000,
    ],
)
async def test_who_shows_no_token_is_not_let_in(guarded, shown):
    for method, path in (("GET", guarded.private), ("POST", guarded.upload), ("GET", "/nowhere")):
        answer = await guarded.ask(method, path, Authorization=shown)
        assert answer.status == 401, (method, path)
        challenge = answer.headers["www-authenticate"]
        assert challenge.startswith('Bearer error="invalid_token", error_description="')
        assert TOKEN[:-1] not in f"{challenge}{answer.body!r}"


async def test_who_sends_no_token_is_asked_for_one(guarded):
    answer = await guarded.ask("GET", guarded.private)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("shown", [f"Bearer {TOKEN}", f"bearer  {OTHER} "])
async def test_who_shows_any_of_the_tokens_is_let_in(guarded, shown):
    assert (await guarded.ask("GET", guarded.private, Authorization=shown)).status == 200


@pytest.mark.parametrize("path", ["", "?service=no-such-service"])
async def test_asking_before_the_body_passes_the_same_guard(guarded, path):
    answer = await guarded.ask(
        "POST",
        guarded.upload + path,
        Expect="100-continue",
        Content_Type="multipart/form-data; boundary=b",
    )
    assert answer.status == 401
    assert b"service" not in answer.body


@pytest.mark.parametrize(("expect", "status"), [("100-continue", 404), ("200-maybe", 417)])
async def test_asking_before_the_body_where_there_is_no_route_is_answered_once(
    unasked, expect, status
):
    with capture_logs() as lines:
        stranger = await unasked.ask("POST", "/nowhere", Expect=expect)
        shown = {"Authorization": f"Bearer {OTHER}"}
        known = await unasked.ask("POST", "/nowhere", Expect=expect, **shown)
    assert (stranger.status, known.status) == (401, status)
    assert [line["principal"] for line in lines if "principal" in line] == ["anonymous", "token-2"]


async def test_without_a_token_health_shows_only_whether_all_is_well(guarded):
    answer = await guarded.ask("GET", "/health")
    assert answer.status == 200
    said = {key: value for key, value in answer.document.items() if value not in (None, "", {}, 0)}
    assert said.pop("ready", True) is True
    assert said == {"status": "ok", "database": "ok"}
    full = await guarded.ask("GET", "/health", Authorization=f"Bearer {TOKEN}")
    assert full.document["version"]


async def test_looking_at_health_often_does_not_look_at_the_disk_often(tmp_path, monkeypatch):
    looks: list[int] = []
    for kind in (Folders, FolderScratch):
        monkeypatch.setattr(kind, "check_writable", lambda _: looks.append(1))
    for name in ("server", "agent"):
        looks.clear()
        async with serving(name, tmp_path / name) as program:
            for _ in range(20):
                assert (await program.ask("GET", "/health")).status == 200
        assert len(looks) <= 3


# -- bodies and numbers


async def test_a_compressed_body_is_not_taken(program):
    answer = await program.ask(
        "POST",
        program.upload,
        "x" * 10,
        Content_Encoding="gzip",
        Content_Type="multipart/form-data; boundary=b",
    )
    assert (answer.status, answer.document["code"]) == (415, "content_encoding")


def _charsets() -> list[str]:
    """Every name that Python knows an encoding by, and some by which it knows none."""
    known = {*encodings.aliases.aliases, *encodings.aliases.aliases.values()}
    dashed = {name.replace("_", "-") for name in known}
    return sorted(known | dashed | {"x", "../x", "a.b", "undefined", "idna", "é", "x" * 200, "\0"})


async def test_texts_come_in_three_charsets_and_no_other_one_is_looked_up(program):
    looked_up: list[str] = []

    def search(name: str) -> None:
        looked_up.append(name)

    codecs.register(search)
    path, kind = "/login", "application/x-www-form-urlencoded"
    if program.name == "agent":
        path, kind = "/submit", "multipart/form-data; boundary=b"
    taken = set()
    try:
        for charset in _charsets():
            answer = await program.ask(
                "POST", path, "token=x", Content_Type=f'{kind}; charset="{charset}"'
            )
            assert answer.status < 500, (charset, answer.body)
            if charset == "\0":
                assert answer.status == 400  # no HTTP
            elif answer.status != 415:
                taken.add(codecs.lookup(charset).name)
            else:
                assert answer.document["code"] == "charset", charset
    finally:
        codecs.unregister(search)
    assert taken <= {"utf-8", "ascii", "iso8859-1"}
    assert looked_up == []


@pytest.mark.parametrize("charset", ["UTF-8", "utf8", "us-ascii", "ISO-8859-1", '"utf-8"'])
async def test_the_usual_names_of_a_charset_are_taken(program, charset):
    kind = f"multipart/form-data; boundary=b; charset={charset}"
    answer = await program.ask("POST", program.upload, "--b--\r\n", Content_Type=kind)
    assert (answer.status, answer.document["code"]) != (415, "charset")


async def test_a_charset_that_takes_long_to_decode_is_refused_unread(tmp_path):
    async with serving("server", tmp_path, tokens=[TOKEN]) as server:
        for path in ("/login", "/login/once", "/logout"):
            answer = await server.ask(
                "POST",
                path,
                "dn32g" + "a" * 20_000,
                Content_Type="application/x-www-form-urlencoded; charset=punycode",
            )
            assert (answer.status, answer.document["code"]) == (415, "charset")


async def test_a_content_type_that_is_dear_to_read_is_refused(program):
    for header in ("a/b;" + '"' * 8_000, "a/b" + "(" * 8_000):
        answer = await program.ask("POST", program.upload, "x", Content_Type=header)
        assert (answer.status, answer.document["code"]) == (415, "content_type")


async def test_a_form_for_strangers_is_small_and_says_how_long_it_is(tmp_path):
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    async with serving("server", tmp_path, tokens=[TOKEN]) as server:
        for path in ("/login", "/login/once", "/logout"):
            answer = await server.ask("POST", path, "x=" + "a" * 9_000, **form)
            assert (answer.status, answer.document["code"]) == (413, "body_too_large")
            answer = await server.ask(
                "POST", path, "3\r\nx=a\r\n0\r\n\r\n", Transfer_Encoding="chunked", **form
            )
            assert (answer.status, answer.document["code"]) == (411, "length_required")


@pytest.mark.parametrize("number", ["9" * 7_000, "²", "%C2%B2", "%D9%A3", "-1", "1e3", "9" * 19])
async def test_numbers_that_are_none_are_refused(program, number):
    paths = {
        "server": [
            f"/download/{number}",
            f"/api/v1/jobs/{number}",
            f"/api/v1/jobs?limit={number}",
            f"/api/v1/jobs?cursor={number}",
            f"/api/v1/jobs/1/events?after={number}",
        ],
        "agent": [f"/retrieve/{number}", f"/events?after={number}"],
    }[program.name]
    for path in paths:
        answer = await program.ask("GET", path.encode().decode("latin-1"))
        assert 400 <= answer.status < 500, path
        assert len(answer.body) < 8_500


async def test_what_is_no_number_of_a_job_is_shown_as_it_was_written(tmp_path):
    async with serving("server", tmp_path) as server:
        answer = await server.ask("GET", "/download/abc")
        assert (answer.status, answer.document["code"]) == (404, "job_not_found")
        assert "'abc'" in str(answer.document["message"])


async def test_another_method_is_answered_with_the_allowed_one(program):
    answer = await program.ask("PUT", program.upload)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


# -- ids and logs


async def test_every_answer_has_an_id_of_its_own_and_so_has_its_line_in_the_log(unasked):
    shown = {"Authorization": f"Bearer {OTHER}"}
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answers = [
            await unasked.ask("POST", unasked.change, **shown),
            await unasked.ask("GET", unasked.private),
            await unasked.ask("POST", unasked.upload, "x", **shown),
            await unasked.ask("GET", "/nowhere", **shown),
            await unasked.ask("GET", "/", Host="evil.example"),
            await unasked.ask("DELETE", unasked.upload, **shown),
            await unasked.ask(
                "OPTIONS", unasked.private, Origin=PORTAL, Access_Control_Request_Method="GET"
            ),
            await unasked.ask("HEAD", unasked.private, **shown),
            await unasked.ask("GET", unasked.private, **shown),
        ]
        malformed = await unasked.send(b"nonsense\r\n\r\n")
    assert {answer.headers["x-content-type-options"] for answer in answers} == {"nosniff"}
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    by_id = {line["request_id"]: line for line in lines if "request_id" in line}
    reply = [by_id[one] for one in ids]
    assert [line["status"] for line in reply] == [answer.status for answer in answers]
    assert [line["principal"] for line in reply] == [
        "token-2", "anonymous", "token-2", "token-2", "anonymous", "token-2", "anonymous",
        "token-2", "token-2",
    ]  # fmt: skip
    assert {line["event"] for line in reply} == {"request.done", "request.denied"}
    assert reply[0]["job_id" if unasked.name == "server" else "payload_id"] == 1
    assert not (unasked.name == "agent" and any("job_id" in line for line in reply))
    assert {line["peer"] for line in reply} == {"127.0.0.1"}
    assert reply[-1]["log_level"] == "debug"
    assert b"X-Request-ID: " in malformed
    assert TOKEN not in str(lines)
    assert OTHER not in str(lines)


@pytest.mark.parametrize(
    "sent",
    [
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SECRET\x01\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SECRET\r\nx\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SECRET" + "x" * 9_000,
        "FOO /?link=SECRET HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /?link=SECRET x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://localhost:x/?link=SECRET HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_not_repeated(guarded, sent):
    with capture_logs() as lines:
        answer = await guarded.send(sent.encode())
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
    assert b"SECRET" not in answer
    assert "request.malformed" in str(lines)
    assert "SECRET" not in str(lines)


async def test_a_flood_of_refusals_does_not_fill_the_log(unasked):
    with capture_logs() as lines:
        for _ in range(60):
            await unasked.ask("GET", unasked.private)
    assert 0 < sum(line["event"] == "request.denied" for line in lines) < 40


async def test_whoever_goes_away_leaves_no_traceback(program):
    with capture_logs() as lines:
        _, writer = await asyncio.open_connection("127.0.0.1", program.port)
        writer.write(
            f"POST {program.upload} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n".encode()
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        while not any(line["event"] in ("request.aborted", "request.done") for line in lines):
            await program.ask("GET", "/")
    assert not any("exc_info" in line or line["log_level"] == "error" for line in lines)


# -- limits, and how errors are reported


async def until_status(ask, status):
    return await eventually(ask, lambda answer: answer.status == status)


async def test_more_requests_than_fit_are_sent_away_and_health_is_not(name, tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    async with (
        serving(name, tmp_path) as program,
        contextlib.AsyncExitStack() as held,
    ):
        head = (
            f"POST {program.upload} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        )
        for _ in range(6):
            await held.enter_async_context(program.holding(head))
        answer = await until_status(lambda: program.ask("GET", program.private), 503)
        assert answer.document["code"] == "too_many_requests"
        assert answer.headers["retry-after"]
        assert (await program.ask("GET", "/health")).status == 200
        await held.aclose()
        await until_status(lambda: program.ask("GET", program.private), 200)


async def test_more_waits_than_fit_are_sent_away(name, tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    async with serving(name, tmp_path) as program:
        path = await program.unfinished()
        head = f"GET {path}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with program.holding(head):
            async with program.holding(head):
                answer = await until_status(lambda: program.wait(path), 429)
                assert answer.document["code"] == "too_many_waits"
                assert (await program.ask("GET", path)).status == 200
            # One of the two is gone, and its wait with it.
            await until_status(lambda: program.wait(path), 200)


async def test_a_full_database_is_507_and_another_failure_503(name, tmp_path, monkeypatch):
    async with serving(name, tmp_path) as program:
        for text, status in {"database or disk is full": 507, "disk I/O error": 503}.items():
            failure = DatabaseUnavailable(sqlite3.OperationalError(text))
            for where in (
                "server.store.jobs.SqlJobs.get",
                "client_agent.payloads.store.Payloads.get",
            ):
                monkeypatch.setattr(where, AsyncMock(side_effect=failure))
            path = {"server": "/api/v1/jobs/1", "agent": "/retrieve/1"}[name]
            answer = await program.ask("GET", path)
            assert (answer.status, answer.document["code"]) == (status, "database_unavailable")
            assert answer.headers["retry-after"]


async def test_a_failure_of_the_database_is_reported_until_it_is_over(name, tmp_path, monkeypatch):
    async with serving(name, tmp_path) as program:

        def failure(*_: object) -> DatabaseUnavailable:
            return DatabaseUnavailable(sqlite3.OperationalError("disk I/O error"))

        async def fail(
            *_: object,
        ) -> None:  # each time a new one: a traceback grows when raised again
            raise failure()

        monkeypatch.setattr(Database, "failure", property(failure))
        monkeypatch.setattr(Database, "write", fail)
        for _ in range(3):  # it does not come and go
            answer = await program.ask("GET", "/health")
            assert (answer.status, answer.document["status"]) == (503, "error")
            assert "disk I/O error" in str(answer.document["message"])
        monkeypatch.undo()
        assert (await program.ask("GET", "/health")).status == 200


async def test_a_download_that_is_broken_off_is_one_line_without_a_traceback(tmp_path):
    """The result does not fit into what the kernel keeps for a reader who reads nothing."""
    client = FakeOrchestrator(result=os.urandom(24 << 20))
    async with driving(tmp_path, client) as caller:
        job = await caller.upload()
        assert (await caller.job(job))["status"] == "Completed"
        program = Program("server", int(caller.url.rpartition(":")[2]), caller)
        with capture_logs() as lines:
            async with program.holding(f"GET /download/{job} HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                await program.ask("GET", "/")
            while not any(line["event"] == "request.aborted" for line in lines):
                await program.ask("GET", "/")
    (line,) = [line for line in lines if line.get("path") == f"/download/{job}"]
    assert (line["event"], line["job_id"], line["peer"]) == ("request.aborted", job, "127.0.0.1")
    assert not any("exc_info" in line or line["log_level"] == "error" for line in lines)
