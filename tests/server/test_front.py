"""Which requests both programs accept: hosts, tokens, bodies; how many; and what is logged."""

import asyncio
import codecs
import contextlib
import functools
import os
import sqlite3
from unittest.mock import AsyncMock, Mock

import pytest
import pytest_asyncio
import structlog
from structlog.testing import capture_logs

from shared.http import connections
from shared.sqlite.files import DatabaseUnavailable
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.waiting import eventually
from tests.server.access import PRINCIPALS
from tests.server.front import OTHER, PORTAL, SHOWN, TOKEN, Program, guarding, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
HALF = (
    "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
    "Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
)
"""The first part of an upload."""


@pytest_asyncio.fixture(loop_scope="module")
async def unasked(name, tmp_path):
    """As ``guarded``, and nobody has asked it anything yet."""
    async with guarding(name, tmp_path) as found:
        yield found


# -- hosts and tokens

STRANGE = ["evil.example", "evil.example:5000", "127.0.0.1.evil.example", "x", "", "10.0.0.1", "[:"]
LOCAL = ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:5"]


async def test_names_of_this_machine_and_of_the_settings_are_answered_and_no_other(guarded):
    """Else somebody's name that points here would let a page read what is local."""
    for host in (*LOCAL, "Jobs.Example.Org:443", "a.lab.example"):
        answer = await guarded.ask("GET", guarded.private, **SHOWN, Host=host)
        assert answer.status == 200, host
    for host in (*STRANGE, "lab.example", "evil-lab.example"):
        answer = await guarded.ask("GET", guarded.private, **SHOWN, Host=host)
        assert (answer.status, answer.document["code"]) == (421, "unknown_host"), host


WRONG = ["", "Bearer", "Bearer ", "Bearer \xff", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}"]


@each("shown", [None, *WRONG, f"Bearer {TOKEN}x", "Bearer " + "9" * 7_000])
async def test_who_shows_none_of_the_tokens_is_not_let_in(guarded, shown):
    given = {} if shown is None else {"Authorization": shown}
    for method, path in (("GET", guarded.private), ("POST", guarded.upload), ("GET", "/nowhere")):
        answer = await guarded.ask(method, path, **given)
        assert answer.status == 401, (method, path)
        challenge = answer.headers["www-authenticate"]
        said = 'Bearer error="invalid_token", error_description="'
        assert challenge.startswith(said) if given else challenge == "Bearer"
        assert TOKEN[:-1] not in f"{challenge}{answer.body!r}"
    for right in (f"Bearer {TOKEN}", f"bearer  {OTHER} "):
        assert (await guarded.ask("GET", guarded.private, Authorization=right)).status == 200


async def test_asking_before_the_body_passes_the_same_guard_and_is_answered_once(unasked):
    asking = {"Expect": "100-continue", "Content_Type": "multipart/form-data; boundary=b"}
    for query in ("", "?service=no-such-service"):
        answer = await unasked.ask("POST", unasked.upload + query, **asking)
        assert (answer.status, b"service" in answer.body) == (401, False), query
    for expect, status in {"100-continue": 404, "200-maybe": 417}.items():
        with capture_logs() as lines:
            stranger = await unasked.ask("POST", "/nowhere", Expect=expect)
            known = await unasked.ask("POST", "/nowhere", Expect=expect, **SHOWN)
        assert (stranger.status, known.status) == (401, status), expect
        said = [line["principal"] for line in lines if "principal" in line]
        assert said == ["anonymous", "token-1"], expect


# -- bodies and numbers


async def test_what_is_no_body_of_ours_is_refused_by_its_head(program):
    form = "multipart/form-data; boundary=b"
    for headers, code in (
        ({"Content_Encoding": "gzip", "Content_Type": form}, "content_encoding"),
        ({"Content_Type": "a/b;" + '"' * 8_000}, "content_type"),  # dear to read
    ):
        answer = await program.ask("POST", program.upload, "x" * 10, **headers)
        assert (answer.status, answer.document["code"]) == (415, code)
    answer = await program.ask("PUT", program.upload)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


USUAL = ("UTF-8", "utf8", "us-ascii", "ISO-8859-1")


async def test_texts_come_in_three_charsets_and_no_other_one_is_looked_up(program):
    """However it is written: tests/rules/test_callers.py."""
    path, kind = "/login", "application/x-www-form-urlencoded"
    if program.name == "agent":
        path, kind = "/submit", "multipart/form-data; boundary=b"
    look_up = Mock(return_value=None)
    codecs.register(look_up)
    try:
        for charset in (*USUAL, "punycode", "idna", "utf-16", "undefined", "../x", "é", "x" * 200):
            head = f'{kind}; charset="{charset}"'
            answer = await program.ask("POST", path, "token=x", Content_Type=head)
            assert answer.status < 500, (charset, answer.body)
            refused = answer.status == 415 and answer.document["code"] == "charset"
            assert refused is (charset not in USUAL), charset
    finally:
        codecs.unregister(look_up)
    look_up.assert_not_called()


async def test_forms_for_strangers_are_small_and_say_how_long_they_are(guarded):
    if guarded.name == "agent":
        return  # it has no forms
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    chunked = form | {"Transfer_Encoding": "chunked"}
    for path in ("/login", "/login/once", "/logout"):
        for body, headers, refusal in (
            ("x=" + "a" * 9_000, form, (413, "body_too_large")),
            ("3\r\nx=a\r\n0\r\n\r\n", chunked, (411, "length_required")),
        ):
            answer = await guarded.ask("POST", path, body, **headers)
            assert (answer.status, answer.document["code"]) == refusal, path


@each("number", ["9" * 7_000, "²", "%C2%B2", "%D9%A3", "-1", "1e3", "9" * 19])
async def test_numbers_that_are_none_are_refused(program, number):
    jobs = [f"/api/v1/jobs{rest}" for rest in ("/", "?limit=", "?cursor=", "/1/events?after=")]
    places = {"server": ["/download/", *jobs], "agent": ["/retrieve/", "/events?after="]}
    for path in places[program.name]:
        answer = await program.ask("GET", (path + number).encode().decode("latin-1"))
        assert 400 <= answer.status < 500, path
        assert len(answer.body) < 8_500


# -- ids and logs


async def test_every_answer_has_an_id_of_its_own_and_so_has_its_line_in_the_log(unasked):
    other = {"Authorization": f"Bearer {OTHER}"}
    asks = {"Origin": PORTAL, "Access_Control_Request_Method": "GET"}
    asked = [
        ("POST", unasked.change, other),
        ("GET", unasked.private, {}),
        ("POST", unasked.upload, other),
        ("GET", "/nowhere", other),
        ("GET", "/", {"Host": "evil.example"}),
        ("DELETE", unasked.upload, other),
        ("OPTIONS", unasked.private, asks),
        ("HEAD", unasked.private, other),
        ("GET", unasked.private, other),
    ]
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answers = [await unasked.ask(method, path, **headers) for method, path, headers in asked]
        malformed = await unasked.send(b"nonsense\r\n\r\n")
    assert {answer.headers["x-content-type-options"] for answer in answers} == {"nosniff"}
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    by_id = {line["request_id"]: line for line in lines if "request_id" in line}
    reply = [by_id[one] for one in ids]
    assert [line["status"] for line in reply] == [answer.status for answer in answers]
    whose = ["token-2" if headers == other else "anonymous" for _, _, headers in asked]
    assert [line["principal"] for line in reply] == whose
    assert {line["event"] for line in reply} == {"request.done", "request.denied"}
    assert reply[0]["job_id" if unasked.name == "server" else "payload_id"] == 1
    assert not (unasked.name == "agent" and any("job_id" in line for line in reply))
    assert {line["peer"] for line in reply} == {"127.0.0.1"}
    assert reply[-1]["log_level"] == "debug"
    assert b"X-Request-ID: " in malformed
    assert not [token for token in (TOKEN, OTHER) if token in str(lines)]


HEAD = "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SECRET"
NONE = [
    *(f"{HEAD}\x01\r\n\r\n", f"{HEAD}\r\nx\r\n\r\n", HEAD + "x" * 9_000),
    "FOO /?link=SECRET HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /?link=SECRET x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET http://localhost:x/?link=SECRET HTTP/1.1\r\nHost: localhost\r\n\r\n",
    *("nonsense\r\n\r\n", "\x16\x03\x01\x02\x00\x01\r\n\r\n"),
]


@each("sent", NONE)
async def test_what_is_no_request_is_not_repeated(guarded, caplog, sent):
    with capture_logs() as lines:
        answer = await guarded.send(sent.encode())
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
    (line,) = [one for one in lines if one["event"] == "request.malformed"]
    assert f"X-Request-ID: {line['request_id']}\r\n".encode() in answer
    assert not [record for record in caplog.records if record.exc_info]
    assert b"SECRET" not in answer
    assert "SECRET" not in str(lines)


async def test_a_flood_of_refusals_does_not_fill_the_log(unasked):
    """Ten lines at once, and ten a second."""
    began = asyncio.get_running_loop().time()
    with capture_logs() as lines:
        for _ in range(60):
            await unasked.ask("GET", unasked.private)
        for _ in range(30):
            await unasked.send(b"nonsense\r\n\r\n")
    took_s = asyncio.get_running_loop().time() - began
    found = [line["event"] for line in lines]
    for event in ("request.denied", "request.malformed"):
        assert 10 <= found.count(event) <= 10 + 10 * took_s, event


async def until_logged(program, lines, *events):
    """Ask until a line about the request before is there; no traceback is."""

    async def seen():
        await program.ask("GET", "/")
        return [line["event"] for line in lines]

    await eventually(seen, lambda found: not {*events}.isdisjoint(found))
    assert not any("exc_info" in line or line["log_level"] == "error" for line in lines)


async def test_whoever_goes_away_leaves_no_traceback(program):
    with capture_logs() as lines:
        async with program.holding(HALF.format(program.upload)):
            pass
        await until_logged(program, lines, "request.aborted", "request.done")


# -- limits, and how errors are reported


async def test_more_requests_and_waits_than_fit_are_sent_away_and_health_is_not(
    name, tmp_path, monkeypatch
):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    async with serving(name, tmp_path) as narrow:

        async def until(status, path="", ask=narrow.ask):
            asked = functools.partial(ask, "GET", path or narrow.private)
            return await eventually(asked, lambda answer: answer.status == status)

        async with contextlib.AsyncExitStack() as held:
            for _ in range(6):
                await held.enter_async_context(narrow.holding(HALF.format(narrow.upload)))
            answer = await until(503)
            assert answer.document["code"] == "too_many_requests"
            assert answer.headers["retry-after"]
            assert (await narrow.ask("GET", "/health")).status == 200
        await until(200)
        path = await narrow.unfinished()
        head = f"GET {path}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        waiting = f"{path}?wait=0.01"
        async with narrow.holding(head):
            async with narrow.holding(head):
                answer = await until(429, waiting, narrow.timed)
                assert answer.document["code"] == "too_many_waits"
                assert (await narrow.ask("GET", path)).status == 200
            # One of the two is gone, and its wait with it.
            await until(200, waiting, narrow.timed)


async def test_a_full_database_is_507_and_another_failure_503(program, monkeypatch):
    path = {"server": "/api/v1/jobs/1", "agent": "/retrieve/1"}[program.name]
    for text, status in {"database or disk is full": 507, "disk I/O error": 503}.items():
        failure = DatabaseUnavailable(sqlite3.OperationalError(text))
        monkeypatch.setattr("server.store.jobs.get", Mock(side_effect=failure))
        asked = "client_agent.payloads.store.Payloads.get"
        monkeypatch.setattr(asked, AsyncMock(side_effect=failure))
        answer = await program.ask("GET", path)
        assert (answer.status, answer.document["code"]) == (status, "database_unavailable")
        assert answer.headers["retry-after"]


async def test_a_download_that_is_broken_off_is_one_line_without_a_traceback(tmp_path):
    """The result does not fit into what the kernel keeps for a reader who reads nothing."""
    client = FakeOrchestrator(result=os.urandom(24 << 20))
    async with driving(tmp_path, client) as caller:
        job = await caller.upload()
        assert (await caller.job(job))["status"] == "Completed"
        program = Program(caller)
        with capture_logs() as lines:
            async with program.holding(f"GET /download/{job} HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                await program.ask("GET", "/")
            await until_logged(program, lines, "request.aborted")
    (line,) = [line for line in lines if line.get("path") == f"/download/{job}"]
    assert (line["event"], line["job_id"], line["peer"]) == ("request.aborted", job, "127.0.0.1")


LIMITED = '[server]\nrate_limit = "2/h"\n[users.portal]\nrate_limit = "5/h"\n'


async def test_each_user_and_portal_may_ask_so_often(tmp_path):
    client = FakeOrchestrator()
    async with driving(tmp_path, client, extra=LIMITED, principals=PRINCIPALS) as caller:
        program = Program(caller)

        async def ask(who: str, path: str = "/api/v1/jobs", **headers: str) -> int:
            headers["Authorization"] = f"Bearer the-token-of-{who}"
            answer = await program.ask("GET", path, **headers)
            if answer.status == 429:
                assert answer.document["code"] == "rate_limited"
                assert 0 < int(answer.headers["retry-after"]) <= 1_800
            return answer.status

        with capture_logs() as logs:
            assert [await ask("ann") for _ in range(2)] == [200, 200]
            assert await ask("reader", "/health") == 200  # is always answered
            assert await ask("reader") == 429  # it is the same user
        assert "rate_limited" in [one.get("code") for one in logs]
        acting = {"Ferryman-Act-As": "ann"}
        assert [await ask("portal", **acting) for _ in range(6)] == [200] * 5 + [429]
        assert {await ask("admin") for _ in range(9)} == {200}
