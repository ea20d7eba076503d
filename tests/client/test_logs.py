"""Logs and results of attempts that left nothing, or not yet; logs that break off."""

import json
from typing import Any

import pytest
from aiohttp import web

from ferryman import AttemptDoc, BadArgument, JobState, NotUnderstood, Unreachable
from ferryman.cli import show
from shared.wire import JobDoc, Reason
from tests.client import fake_server
from tests.client.fake_server import HERE, FakeServer, attempt, doc, job, page, problem
from tests.kit.each import each

LOGS = f"GET {HERE}/logs"
REPLACED = "\x1b[31m\N{REPLACEMENT CHARACTER}\n"
FAILED = attempt(1, JobState.FAILED)
RUNNING = attempt(2, JobState.RUNNING)
WAITING = attempt(2, JobState.RUNNING, started_at=None)
LOST = attempt(2, JobState.FAILED, left=False, reason=Reason.AGENT_LOST, message="node-3 is lost")
CANCELLED = job(JobState.CANCELLED, message="cancelled by its user")


def having(fake: FakeServer, *attempts: AttemptDoc, final: JobDoc | None = None) -> FakeServer:
    """A job with these attempts; a running one has a log, and no result."""

    def refusal(number: int) -> fake_server.Reply | None:
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
        return (refusal(int(request.query["attempt"])) or fake_server.zipped()).response()

    async def log(request: web.Request) -> web.StreamResponse:
        number, stream = int(request.query["attempt"]), request.query["stream"]
        refused = None if RUNNING in attempts and number == 2 else refusal(number)
        text = f"{stream} of {number} \x1b[31m".encode() + b"\xff\n"
        return (refused or fake_server.Reply(text, kind="text/plain")).response()

    document = (final or job()).model_copy(update={"attempts": [*attempts]})
    return fake.on(f"GET {HERE}", doc(document)).on(f"GET {HERE}/result", result).on(LOGS, log)


NOW = "what there is now, logs included: ferryman download 17 --partial --url {}"
STATE = "its state: ferryman status 17 --url {}"
WAITS = ["ferryman: attempt 2 of job 17 has not ended", NOW]
NOTHING = ["ferryman: attempt 2 of job 17 left nothing: why"]
EARLIER = ["this is attempt 1; attempt 2 has not ended", NOW]
LATEST = ["this is attempt 1; attempt 2 left no logs: node-3 is lost"]
UNTAKEN = ["ferryman: no agent has taken job 17: it runs", STATE]
NEVER_TAKEN = ["ferryman: no agent has taken job 17: cancelled by its user", STATE]
FIRST, SECOND = f"stdout of 1 {REPLACED}", f"stdout of 2 {REPLACED}"


@each(
    ("attempts", "final", "words", "code", "out", "err"),
    [
        ([FAILED, RUNNING], None, "logs 17", 0, SECOND, []),
        ([FAILED, WAITING], None, "logs 17", 0, FIRST, EARLIER),
        ([FAILED, WAITING], None, "logs 17 --quiet", 0, FIRST, []),
        ([FAILED, LOST], None, "logs 17", 0, FIRST, LATEST),
        ([], None, "logs 17", 75, "", UNTAKEN),
        ([], CANCELLED, "logs 17", 1, "", NEVER_TAKEN),
        ([WAITING], None, "logs 17", 75, "", WAITS),
        ([WAITING], None, "logs 17 --attempt 2", 75, "", WAITS),
        ([FAILED, RUNNING], None, "download 17 --attempt 2", 75, "", WAITS),
        ([LOST], None, "logs 17", 1, "", NOTHING),
        ([FAILED, LOST], None, "download 17 --attempt 2", 1, "", NOTHING),
        ([FAILED, LOST], None, "logs 17 --attempt 2", 1, "", NOTHING),
    ],
)
async def test_which_attempt_it_is_is_said(fake, ferryman, attempts, final, words, code, out, err):
    having(fake, *attempts, final=final)
    said = await ferryman(*words.split(), "--url", fake.url)
    assert (said.code, said.out) == (code, out)
    assert said.err.splitlines() == [line.format(fake.url) for line in err]


async def test_neither_a_page_nor_half_a_log_is_given_for_a_log(fake):
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.content_length = 20
        await response.prepare(request)
        await response.write(b"half of it")
        assert request.transport is not None
        request.transport.close()
        return response

    stream: Any = "both"
    async with fake.client(retry_for=0.2) as client:
        with pytest.raises(BadArgument, match="not 'both'"):
            await client.log(17, stream=stream)
        fake.on(LOGS, page("<h1>Log in</h1>"))
        with pytest.raises(NotUnderstood, match="expected plain text"):
            await client.log(17, 1)
        fake.on(LOGS, break_off)
        with pytest.raises(Unreachable):
            await client.log(17, 1)
    assert len(fake.asked[LOGS]) > 1


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
            await fake_server.hang_up(request)
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
    for words in ("logs 17 --tail 10", "logs 17 --attempt 0", "download 17 --attempt 0"):
        assert (await ferryman(*words.split())).code == 2


async def test_logs_of_several_jobs_have_heads_and_json_has_their_numbers(fake, ferryman):
    for number in (1, 2):
        log = page(f"log {number} \x1b[31m\n", kind="text/plain")
        fake.on(f"GET /api/v1/jobs/{number}/logs", log)
    words = ("logs", 1, 2, "--attempt", 1, "--url", fake.url)
    plain = await ferryman(*words)
    quiet = await ferryman(*words, "-q")
    assert plain.out == quiet.out == "log 1 \x1b[31m\nlog 2 \x1b[31m\n"
    assert (plain.err, quiet.err) == ("==> job 1, stdout <==\n==> job 2, stdout <==\n", "")
    parsed = json.loads((await ferryman(*words, "--json", "--stderr")).out)
    text = "log 2 \x1b[31m\n"
    assert parsed[1] == {"job_id": 2, "attempt": 1, "stream": "stderr", "text": text}
    one = await ferryman("logs", 1, "--attempt", 1, "--json", "--url", fake.url)
    assert json.loads(one.out)["text"] == "log 1 \x1b[31m\n"
    shown = await ferryman("logs", 1, "--attempt", 1, "--url", fake.url, terminal=True)
    assert shown.out == "log 1 \\x1b[31m\n"
    assert show.printable("a\x1b]0;t\x07\rb\u202e\n\tc") == "a\\x1b]0;t\\x07\\rb\\u202e\n\tc"
    follow = await ferryman(*words, "-f")
    assert (follow.code, follow.out) == (2, "")
