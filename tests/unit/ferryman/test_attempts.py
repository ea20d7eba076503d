"""Attempts and their logs, in the SDK and on the command line, against a fake server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from ferryman import (
    AttemptDoc,
    BadArgument,
    Client,
    JobState,
    NoResult,
    NotFound,
    NotReady,
    NotUnderstood,
    SyncClient,
    Unreachable,
)
from ferryman.cli import show
from shared.wire import AttemptLinks, JobDoc, Limits, Reason
from tests.unit.ferryman.conftest import ZIP, Host
from tests.unit.ferryman.fake_server import InstantClock, answer, hang_up, job, problem, serving

HERE = "/api/v1/jobs/17"
LIMITS = Limits(cpus=1, memory=1, pids=1, disk=1, log=1, results=1, network=False)


def attempt(number: int, status: JobState = JobState.COMPLETED, **changes: Any) -> AttemptDoc:
    """An attempt that left a result, unless ``left`` is false."""
    links = AttemptLinks()
    if changes.pop("left", status is not JobState.RUNNING):
        stdout = f"{HERE}/logs?attempt={number}"
        links = AttemptLinks(
            result=f"{HERE}/result?attempt={number}",
            stdout=stdout,
            stderr=f"{stdout}&stream=stderr",
        )
    values: dict[str, Any] = {
        "number": number,
        "status": status,
        "agent": "node-3",
        "timeout_s": 60,
        "limits": LIMITS,
        "claimed_at": "2026-11-20T10:00:00.000000Z",
        "started_at": "2026-11-20T10:00:01.000000Z",
        "ended_at": None if status is JobState.RUNNING else "2026-11-20T10:01:31.000000Z",
        "links": links,
    }
    return AttemptDoc(**{**values, **changes})


FAILED = attempt(
    1, JobState.FAILED, exit_code=3, reason=Reason.EXIT_CODE, message="run.sh ended with 3"
)
RUNNING = attempt(2, JobState.RUNNING)
WAITING = attempt(2, JobState.RUNNING, started_at=None)
FINE = attempt(2, exit_code=0)
LOST = attempt(2, JobState.FAILED, left=False, reason=Reason.AGENT_LOST, message="node-3 is lost")


class Attempts(Host):
    """A server with one job and these attempts."""

    def __init__(self, *attempts: AttemptDoc, final: JobDoc | None = None) -> None:
        super().__init__(final or job())
        self.attempts = attempts

    def refusal(self, number: str) -> web.StreamResponse | None:
        """What the server says where an attempt left nothing."""
        for one in self.attempts:
            if one.number == int(number) and one.links.result is None:
                if one.ended_at is None:
                    why = f"attempt {number} of job 17 has not ended"
                    why += "; /download_partial/17 shows what there is now"
                    return problem(409, "not_ended", why)
                return problem(409, "no_result", f"attempt {number} of job 17 left nothing: why")
            if one.number == int(number):
                return None
        return problem(404, "attempt_not_found", f"job 17 has no attempt {number}")

    async def attempt_result(self, request: web.Request) -> web.StreamResponse:
        return self.refusal(request.query["attempt"]) or await self.result(request)

    async def log(self, request: web.Request) -> web.StreamResponse:
        number, stream = request.query["attempt"], request.query["stream"]
        runs = any(one is RUNNING and number == str(one.number) for one in self.attempts)
        text = f"{stream} of {number} \x1b[31m".encode() + b"\xff\n"
        refused = None if runs else self.refusal(number)
        return refused or web.Response(body=text, content_type="text/plain", charset="utf-8")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with serving(
            ("GET", HERE, self.one),
            ("GET", f"{HERE}/result", self.attempt_result),
            ("GET", f"{HERE}/logs", self.log),
        ) as url:
            yield url

    async def one(self, _: web.Request) -> web.StreamResponse:
        return answer(self.final.model_copy(update={"attempts": list(self.attempts)}))


# ------------------------------------------------------------------ the SDK


async def test_what_an_attempt_left_is_saved_under_its_number(tmp_path):
    async with Attempts(FAILED, RUNNING).serving() as url, Client(url) as client:
        done = await client.download(17, tmp_path, attempt=1)
        assert done.path == tmp_path / "job-17-attempt-1.zip"
        assert done.path.read_bytes() == ZIP
        done.path.unlink()
        with pytest.raises(NotReady, match="has not ended"):
            await client.download(17, tmp_path, attempt=2)
        with pytest.raises(NotFound, match="no attempt 3"):
            await client.download(17, tmp_path, attempt=3)
        with pytest.raises(NotFound):
            await client.download(17, tmp_path, attempt=0)
        with pytest.raises(BadArgument):
            await client.download(17, tmp_path, attempt=1, partial=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("attempts", "number"), [([FAILED, FINE], 2), ([FAILED, RUNNING], 2), ([FAILED, LOST], 1)]
)
async def test_the_log_is_that_of_the_latest_attempt_that_has_one(attempts, number):
    async with Attempts(*attempts).serving() as url, Client(url) as client:
        assert await client.log(17) == f"stdout of {number} \x1b[31m\N{REPLACEMENT CHARACTER}\n"
        assert (await client.log(17, stream="stderr")).startswith(f"stderr of {number}")
        assert (await client.log(17, 1)).startswith("stdout of 1")


async def test_why_there_is_no_log_is_an_error_of_its_own_kind():
    ended = job(JobState.CANCELLED, message="cancelled by its user")
    for server, number, kind, text in (
        (Attempts(WAITING), None, NotReady, "attempt 2 of job 17 has not ended"),
        (Attempts(WAITING), 2, NotReady, "attempt 2 of job 17 has not ended"),
        (Attempts(LOST), None, NoResult, "left nothing"),
        (Attempts(FAILED), 2, NotFound, "no attempt 2"),
        (Attempts(), None, NotReady, "no agent has taken job 17"),
        (Attempts(final=ended), None, NoResult, "no agent has taken job 17: cancelled by"),
    ):
        async with server.serving() as url, Client(url) as client:
            with pytest.raises(kind, match=text) as caught:
                await client.log(17, number)
            assert type(caught.value) is kind
            assert caught.value.request_id == (None if not server.attempts else "r-1")


async def test_a_log_is_stdout_or_stderr():
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(BadArgument, match="not 'both'"):
            await client.log(17, stream="both")  # type: ignore[arg-type]


def responding(make: Callable[[], web.StreamResponse]) -> Any:
    async def respond(_: web.Request) -> web.StreamResponse:
        return make()

    return serving(("GET", "/api/v1/jobs/17/logs", respond))


async def test_a_page_is_no_log():
    page = responding(lambda: web.Response(text="<h1>Log in</h1>", content_type="text/html"))
    async with page as url, Client(url) as client:
        with pytest.raises(NotUnderstood, match="expected plain text"):
            await client.log(17, 1)


async def test_half_a_log_is_not_given_for_the_whole():
    tries = 0

    async def break_off(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.content_length = 20
        await response.prepare(request)
        await response.write(b"half of it")
        assert request.transport is not None
        request.transport.close()
        return response

    async with (
        serving(("GET", "/api/v1/jobs/17/logs", break_off)) as url,
        Client(url, clock=InstantClock(), retry_for=0.2) as client,
    ):
        with pytest.raises(Unreachable):
            await client.log(17, 1)
    assert tries > 1


def test_the_synchronous_client_has_them_too():
    assert SyncClient.log.__doc__ == Client.log.__doc__


# ------------------------------------------------------------------ the command line


async def test_status_shows_several_attempts_as_lines_with_tabs(ferryman):
    async with Attempts(FAILED, RUNNING).serving() as url:
        done = await ferryman("status", 17, "--url", url)
        as_json = await ferryman("status", 17, "--url", url, "--json")
    assert RUNNING.started_at is not None
    started = show.local(RUNNING.started_at)
    assert done.out.splitlines()[-3:] == [
        "ATTEMPT\tSTATUS\tAGENT\tSTARTED\tTOOK\tEXIT\tREASON",
        f"1\tFailed\tnode-3\t{started}\t1m 30s\t3\texit_code",
        f"2\tRunning\tnode-3\t{started}\t\t\t",
    ]
    assert JobDoc.model_validate_json(as_json.out).attempts == [FAILED, RUNNING]


async def test_a_job_that_no_agent_took_has_no_logs(ferryman):
    async with Attempts().serving() as url:
        logs = await ferryman("logs", 17, "--url", url)
    hint = f"its state: ferryman status 17 --url {url}\n"
    assert (logs.code, logs.out) == (75, "")
    assert logs.err == f"ferryman: no agent has taken job 17: it runs\n{hint}"


def test_a_narrow_terminal_keeps_how_each_attempt_ended(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    show.print_attempts([FAILED])
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("1", "Failed", "node-3", "1m", "30s", "3", "exit_code")
    ]


async def test_what_an_attempt_left_can_be_fetched(ferryman, tmp_path):
    async with Attempts(FAILED, RUNNING).serving() as url:
        done = await ferryman("download", 17, "--attempt", 1, "--url", url)
        early = await ferryman("download", 17, "--attempt", 2, "--url", url)
        both = await ferryman("download", 17, "--attempt", 1, "--partial", "--url", url)
        none = await ferryman("download", 17, "--attempt", 3, "--url", url)
    assert (done.code, done.out) == (0, "job-17-attempt-1.zip\n")
    assert (tmp_path / "job-17-attempt-1.zip").read_bytes() == ZIP
    assert early.code == 75
    assert early.err.splitlines() == [
        "ferryman: attempt 2 of job 17 has not ended",
        f"what there is now, logs included: ferryman download 17 --partial --url {url}",
    ]
    assert (both.code, none.code) == (2, 1)


async def test_of_an_attempt_that_left_nothing_no_other_is_offered(ferryman):
    async with Attempts(FAILED, LOST).serving() as url:
        fetched = await ferryman("download", 17, "--attempt", 2, "--url", url)
        logs = await ferryman("logs", 17, "--attempt", 2, "--url", url)
    for done in (fetched, logs):
        assert (done.code, done.out) == (1, "")
        assert done.err == "ferryman: attempt 2 of job 17 left nothing: why\n"


async def test_logs_are_printed_as_they_are_where_nobody_looks(ferryman):
    async with Attempts(FAILED, FINE).serving() as url:
        latest = await ferryman("logs", 17, "--url", url)
        first = await ferryman("logs", 17, "--attempt", 1, "--stderr", "--url", url)
    replaced = "\N{REPLACEMENT CHARACTER}"
    assert (latest.code, latest.out) == (0, f"stdout of 2 \x1b[31m{replaced}\n")
    assert (first.code, first.out) == (0, f"stderr of 1 \x1b[31m{replaced}\n")
    assert latest.err == first.err == ""


async def test_logs_do_not_control_a_terminal(ferryman, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    async with Attempts(FINE).serving() as url:
        done = await ferryman("logs", 17, "--url", url)
    assert done.out == "stdout of 2 \\x1b[31m\N{REPLACEMENT CHARACTER}\n"


async def test_logs_of_an_earlier_attempt_are_said_to_be_so(ferryman):
    async with Attempts(FAILED, WAITING).serving() as url:
        running = await ferryman("logs", 17, "--url", url)
        quiet = await ferryman("logs", 17, "--url", url, "--quiet")
    assert running.out.startswith("stdout of 1")
    assert running.err.splitlines() == [
        "this is attempt 1; attempt 2 has not ended",
        f"what there is now, logs included: ferryman download 17 --partial --url {url}",
    ]
    assert (quiet.out, quiet.err) == (running.out, "")
    async with Attempts(FAILED, LOST).serving() as url:
        lost = await ferryman("logs", 17, "--url", url)
    assert lost.out.startswith("stdout of 1")
    assert lost.err == "this is attempt 1; attempt 2 left no logs: node-3 is lost\n"


async def test_the_log_of_an_attempt_that_waits_comes_with_the_command_for_what_there_is(ferryman):
    async with Attempts(WAITING).serving() as url:
        for words in (("logs", 17), ("logs", 17, "--attempt", 2)):
            done = await ferryman(*words, "--url", url)
            assert (done.code, done.out) == (75, "")
            assert done.err.splitlines() == [
                "ferryman: attempt 2 of job 17 has not ended",
                f"what there is now, logs included: ferryman download 17 --partial --url {url}",
            ]


async def test_a_log_is_followed_through_breaks_until_its_attempt_has_ended(ferryman):
    asked: list[str] = []
    log = b"one\ntwo\nthree\n"

    async def follow(request: web.Request) -> web.StreamResponse:
        asked.append(request.query_string)
        start = int(request.query.get("offset", 4))
        stop = {1: 8, 2: 10}.get(len(asked), 14)
        headers = {
            "Content-Type": "text/plain",
            "Ferryman-Log-Attempt": "2",
            "Ferryman-Log-Offset": str(start),
            "Ferryman-Log-Ended": str(len(asked) >= 3).lower(),
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(log[start:stop])
        if len(asked) == 2:
            hang_up(request)
        return response

    async with serving(("GET", "/api/v1/jobs/17/logs", follow)) as url:
        async with Client(url, clock=InstantClock()) as client:
            chunks = [chunk async for chunk in client.follow_log(17, tail=10)]
        assert b"".join(chunks) == b"two\nthree\n"
        assert asked == [
            "stream=stdout&follow=1&tail=10",
            "stream=stdout&follow=1&offset=8&attempt=2",
            "stream=stdout&follow=1&offset=10&attempt=2",
        ]
        command = await ferryman("logs", 17, "--follow", "--tail", 10, "--url", url)
    assert (command.code, command.out) == (0, "two\nthree\n")
    assert (await ferryman("logs", 17, "--tail", 10)).code == 2


@pytest.mark.parametrize("command", ["download", "logs"])
async def test_attempts_are_counted_from_1(ferryman, command):
    assert (await ferryman(command, 17, "--attempt", 0)).code == 2
