"""Attempts that left nothing, or not yet, and logs that break off."""

from __future__ import annotations

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
    Unreachable,
)
from ferryman.cli import show
from shared.wire import AttemptLinks, JobDoc, Limits, Reason
from tests.client.fake_server import (
    HERE,
    FakeServer,
    Reply,
    doc,
    hang_up,
    job,
    page,
    problem,
    zipped,
)
from tests.kit.each import each

LIMITS = Limits(cpus=1, memory=1, pids=1, disk=1, log=1, results=1, network=False)
LOGS = f"GET {HERE}/logs"
REPLACED = "\x1b[31m\N{REPLACEMENT CHARACTER}\n"


def attempt(number: int, status: JobState = JobState.COMPLETED, **changes: Any) -> AttemptDoc:
    """An attempt that left a result, unless ``left`` is false."""
    links = AttemptLinks()
    if changes.pop("left", status is not JobState.RUNNING):
        result = f"{HERE}/result?attempt={number}"
        stdout = f"{HERE}/logs?attempt={number}"
        links = AttemptLinks(result=result, stdout=stdout, stderr=f"{stdout}&stream=stderr")
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


EXIT: Any = {"exit_code": 3, "reason": Reason.EXIT_CODE, "message": "run.sh ended with 3"}
FAILED = attempt(1, JobState.FAILED, **EXIT)
RUNNING = attempt(2, JobState.RUNNING)
WAITING = attempt(2, JobState.RUNNING, started_at=None)
FINE = attempt(2, exit_code=0)
LOST = attempt(2, JobState.FAILED, left=False, reason=Reason.AGENT_LOST, message="node-3 is lost")
CANCELLED = job(JobState.CANCELLED, message="cancelled by its user")


def having(fake: FakeServer, *attempts: AttemptDoc, final: JobDoc | None = None) -> FakeServer:
    """A job with these attempts; a running one has a log, and no result."""

    def refusal(number: int) -> Reply | None:
        found = next((one for one in attempts if one.number == number), None)
        if found is None:
            return problem(404, "attempt_not_found", f"job 17 has no attempt {number}")
        if found.links.result is not None:
            return None
        if found.ended_at is None:
            why = f"attempt {number} of job 17 has not ended"
            return problem(409, "not_ended", f"{why}; /download_partial/17 shows what there is now")
        return problem(409, "no_result", f"attempt {number} of job 17 left nothing: why")

    async def result(request: web.Request) -> web.StreamResponse:
        return (refusal(int(request.query["attempt"])) or zipped()).response()

    async def log(request: web.Request) -> web.StreamResponse:
        number, stream = int(request.query["attempt"]), request.query["stream"]
        refused = None if RUNNING in attempts and number == 2 else refusal(number)
        text = f"{stream} of {number} \x1b[31m".encode() + b"\xff\n"
        return (refused or Reply(text, kind="text/plain")).response()

    document = (final or job()).model_copy(update={"attempts": [*attempts]})
    return fake.on(f"GET {HERE}", doc(document)).on(f"GET {HERE}/result", result).on(LOGS, log)


async def test_what_an_attempt_left_is_there_once_it_has_ended(fake, tmp_path):
    having(fake, FAILED, RUNNING)
    async with Client(fake.url) as client:
        with pytest.raises(NotReady, match="has not ended"):
            await client.download(17, tmp_path, attempt=2)
        with pytest.raises(NotFound, match="no attempt 0"):
            await client.download(17, tmp_path, attempt=0)
        with pytest.raises(BadArgument, match="not 'both'"):
            await client.log(17, stream="both")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@each(("attempts", "number"), [([FAILED, FINE], 2), ([FAILED, RUNNING], 2), ([FAILED, LOST], 1)])
async def test_the_log_is_that_of_the_latest_attempt_that_has_one(fake, attempts, number):
    having(fake, *attempts)
    async with Client(fake.url) as client:
        assert await client.log(17) == f"stdout of {number} {REPLACED}"
        assert (await client.log(17, stream="stderr")).startswith(f"stderr of {number}")
        assert (await client.log(17, 1)).startswith("stdout of 1")


@each(
    ("attempts", "final", "number", "kind", "text"),
    [
        ([WAITING], None, None, NotReady, "attempt 2 of job 17 has not ended"),
        ([WAITING], None, 2, NotReady, "attempt 2 of job 17 has not ended"),
        ([LOST], None, None, NoResult, "left nothing"),
        ([FAILED], None, 2, NotFound, "no attempt 2"),
        ([], None, None, NotReady, "no agent has taken job 17"),
        ([], CANCELLED, None, NoResult, "no agent has taken job 17: cancelled by"),
    ],
)
async def test_why_there_is_no_log_is_an_error_of_its_own_kind(
    fake, attempts, final, number, kind, text
):
    having(fake, *attempts, final=final)
    async with Client(fake.url) as client:
        with pytest.raises(kind, match=text) as caught:
            await client.log(17, number)
    assert type(caught.value) is kind
    assert caught.value.request_id == ("r-1" if attempts else None)


async def test_neither_a_page_nor_half_a_log_is_given_for_a_log(fake):
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.content_length = 20
        await response.prepare(request)
        await response.write(b"half of it")
        assert request.transport is not None
        request.transport.close()
        return response

    async with fake.client(retry_for=0.2) as client:
        fake.on(LOGS, page("<h1>Log in</h1>"))
        with pytest.raises(NotUnderstood, match="expected plain text"):
            await client.log(17, 1)
        fake.on(LOGS, break_off)
        with pytest.raises(Unreachable):
            await client.log(17, 1)
    assert len(fake.asked[LOGS]) > 1


def test_a_narrow_terminal_keeps_how_each_attempt_ended(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    show.print_attempts([FAILED])
    last = capsys.readouterr().out.splitlines()[1].split()
    assert last == ["1", "Failed", "node-3", "1m", "30s", "3", "exit_code"]


NOW = "what there is now, logs included: ferryman download 17 --partial --url {}"
STATE = "its state: ferryman status 17 --url {}"
WAITS = ["ferryman: attempt 2 of job 17 has not ended", NOW]
NOTHING = ["ferryman: attempt 2 of job 17 left nothing: why"]
EARLIER = ["this is attempt 1; attempt 2 has not ended", NOW]


@each(
    ("attempts", "words", "code", "out", "err"),
    [
        ([FAILED, FINE], "logs 17", 0, f"stdout of 2 {REPLACED}", []),
        ([FAILED, FINE], "logs 17 --attempt 1 --stderr", 0, f"stderr of 1 {REPLACED}", []),
        ([FAILED, WAITING], "logs 17", 0, f"stdout of 1 {REPLACED}", EARLIER),
        ([FAILED, WAITING], "logs 17 --quiet", 0, f"stdout of 1 {REPLACED}", []),
        (
            [FAILED, LOST],
            "logs 17",
            0,
            f"stdout of 1 {REPLACED}",
            ["this is attempt 1; attempt 2 left no logs: node-3 is lost"],
        ),
        (
            [],
            "logs 17",
            75,
            "",
            [
                "ferryman: no agent has taken job 17: it runs",
                "its state: ferryman status 17 --url {}",
            ],
        ),
        ([WAITING], "logs 17", 75, "", WAITS),
        ([WAITING], "logs 17 --attempt 2", 75, "", WAITS),
        ([FAILED, RUNNING], "download 17 --attempt 2", 75, "", WAITS),
        ([FAILED, LOST], "download 17 --attempt 2", 1, "", NOTHING),
        ([FAILED, LOST], "logs 17 --attempt 2", 1, "", NOTHING),
    ],
)
async def test_commands_say_which_attempt_it_is_or_why_there_is_none(
    fake, ferryman, attempts, words, code, out, err
):
    having(fake, *attempts)
    said = await ferryman(*words.split(), "--url", fake.url)
    assert (said.code, said.out) == (code, out)
    assert said.err.splitlines() == [line.format(fake.url) for line in err]


async def test_a_log_is_followed_through_breaks_until_its_attempt_has_ended(fake, ferryman):
    log = b"one\ntwo\nthree\n"

    async def follow(request: web.Request) -> web.StreamResponse:
        tries = len(fake.asked[LOGS])
        start = int(request.query.get("offset", 4))
        stop = {1: 8, 2: 10}.get(tries, 14)
        headers = {
            "Content-Type": "text/plain",
            "Ferryman-Log-Attempt": "2",
            "Ferryman-Log-Offset": str(start),
            "Ferryman-Log-Ended": str(tries >= 3).lower(),
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(log[start:stop])
        if tries == 2:
            await hang_up(request)
        return response

    fake.on(LOGS, follow)
    async with fake.client() as client:
        chunks = [chunk async for chunk in client.follow_log(17, tail=10)]
    assert b"".join(chunks) == b"two\nthree\n"
    more = {"stream": "stdout", "follow": "1"}
    assert [one.query for one in fake.asked[LOGS]] == [
        more | {"tail": "10"},
        more | {"offset": "8", "attempt": "2"},
        more | {"offset": "10", "attempt": "2"},
    ]
    command = await ferryman("logs", 17, "--follow", "--tail", 10, "--url", fake.url)
    assert (command.code, command.out) == (0, "two\nthree\n")
    for words in (("--tail", 10), ("--attempt", 0)):
        assert (await ferryman("logs", 17, *words)).code == 2
    assert (await ferryman("download", 17, "--attempt", 0)).code == 2
