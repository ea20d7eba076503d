"""What commands print, for people and for programs, of answers that a test makes up."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from aiohttp import web

from ferryman import Client, JobState
from ferryman.cli import follow, show
from ferryman.cli import jobs as job_commands
from ferryman.cli.exits import exit_code_of_job
from ferryman.cli.follow import wait_for
from ferryman.cli.options import Server
from ferryman.clock import wall_clock
from shared.wire import EventDoc, JobDoc, QueueInfo, Reason, Usage
from tests.client.fake_server import (
    HERE,
    ZIP,
    FakeServer,
    accepted,
    attempt,
    doc,
    event,
    events,
    job,
    jobs,
    never,
    problem,
    zipped,
)
from tests.kit.each import each
from tests.kit.waiting import until

FAILED = job(
    JobState.FAILED,
    reason=Reason.EXIT_CODE,
    exit_code=3,
    message="run.sh ended with exit code 3",
    stderr_tail="line one\nbad \x1b[31mline\n",
)
ATTEMPT = attempt(1, JobState.FAILED, exit_code=3, reason=Reason.EXIT_CODE)
DONE = job(JobState.COMPLETED)
JOBS = "GET /api/v1/jobs"
SUBMIT = ("submit", "bundle", "-s", "example", "-u", "ada")


def hosting(fake: FakeServer, final: JobDoc, *warnings: str) -> FakeServer:
    """One job."""
    fake.on("POST /upload", accepted(17, *warnings)).on(f"GET {HERE}", doc(final))
    fake.on(f"GET {HERE}/events", events(event(1, final.status)))
    return fake.on(f"GET {HERE}/result", zipped())


async def test_submit_passes_on_what_it_is_given(fake, ferryman, bundle, tmp_path):
    hosting(fake, job(JobState.QUEUED), "timeout: 10d was asked for, example allows 1h")
    said = await ferryman(*SUBMIT, "--url", fake.url)
    assert (said.code, said.out) == (0, "17\n")
    assert said.err.splitlines() == [
        "sending 1 file (8 B)",
        "warning: timeout: 10d was asked for, example allows 1h",
        f"job 17 is accepted; follow it: ferryman status 17 --wait --url {fake.url}",
    ]
    hosting(fake, job(JobState.QUEUED))
    (tmp_path / "token").write_text("secret\n")
    fields = {"name": "n", "timeout": "1h30m", "memory": "64MiB", "cpus": "0.5", "pids": "32"}
    fields |= {"disk": "1GB", "priority": "-1"}
    words = [word for name, text in fields.items() for word in (f"--{name}", text)]
    words += ["--tag", "a", "--tag", "b", "--quiet", "--json", "--idempotency-key", "k"]
    words += ["--token-file", str(tmp_path / "token")]
    said = await ferryman(*SUBMIT, *words, "--url", fake.url)
    made = {"id": 17, "status": "Queued", "message": "Job successfully uploaded"}
    made |= {"idempotency_key": "k", "warnings": []}
    assert (said.err, json.loads(said.out)) == ("", made)
    (upload,) = fake.uploads
    assert upload.fields == fields | {"user_id": "ada", "service": "example", "tags": "a,b"}
    headers = upload.headers["Idempotency-Key"], upload.headers["Authorization"]
    assert headers == ("k", "Bearer secret")


async def test_options_may_stand_first_or_in_the_environment(fake, ferryman, bundle, monkeypatch):
    hosting(fake, job(JobState.QUEUED))
    names = {"USER": "grace", "SERVICE": "haddock", "TOKEN": "from-env", "URL": fake.url}
    env = {f"FERRYMAN_{name}": value for name, value in names.items()}
    assert (await ferryman("submit", bundle, **env)).code == 0
    env |= {"FERRYMAN_USER": None, "FERRYMAN_TOKEN": None}
    for login, code in (("linus", 0), ("no spaces allowed", 2)):
        monkeypatch.setattr("getpass.getuser", lambda login=login: login)
        said = await ferryman("submit", bundle, **env)
        assert (said.code, "--user" in said.err) == (code, code == 2)
    words = ("--url", "http://127.0.0.1:1", "--token", "t", *SUBMIT, "--url", fake.url)
    assert (await ferryman(*words)).code == 0
    assert (await ferryman("--url")).code == 2
    sent = [(one.fields["user_id"], one.headers.get("Authorization")) for one in fake.uploads]
    assert sent == [("grace", "Bearer from-env"), ("linus", None), ("ada", "Bearer t")]
    assert [one.fields["service"] for one in fake.uploads] == ["haddock", "haddock", "example"]


async def test_results_go_where_they_are_wanted(fake, ferryman, bundle, tmp_path):
    hosting(fake, DONE)
    said = await ferryman(*SUBMIT, "--output", "out/", "--json", "--url", fake.url)
    assert (said.code, JobDoc.model_validate_json(said.out)) == (0, DONE)
    assert (tmp_path / "out" / "job-17.zip").read_bytes() == ZIP
    assert "saved out/job-17.zip (22 B)" in said.err
    piped = await ferryman(*SUBMIT, "-o", "-", "--url", fake.url)
    assert (piped.code, piped.data, "job 17" in piped.err.splitlines()) == (0, ZIP, True)
    about = {"job_id": 17, "path": "p.zip", "size": len(ZIP), "sha256": sha256(ZIP).hexdigest()}
    parsed = await ferryman("download", 17, "--json", "-o", "p.zip", "-q", "--url", fake.url)
    assert json.loads(parsed.out) == about
    sent = len(fake.uploads)
    for words, code in (
        ((*SUBMIT, "--output", bundle / "run.sh" / "x.zip"), 73),
        (("download", "17", "-o", "/proc/x.zip"), 73),
        (("download", "17", "--json", "-o", "-"), 2),
    ):
        refused = await ferryman(*words, "--url", fake.url)
        assert (refused.code, refused.out, "Errno" in refused.err) == (code, "", False)
    assert len(fake.uploads) == sent, "nothing is sent where no result can be written"


def test_the_exit_code_of_a_job():
    for case in (
        "Completed - - 0",
        "Failed exit_code 3 3",
        "Failed exit_code 256 1",
        "Failed agent_lost - 1",
        "Failed timeout 143 124",
        "Failed queue_timeout - 124",
        "Failed memory_limit 137 137",
        "Cancelled - - 143",
        "Cleaned - - 0",
        "Cleaned exit_code 3 3",
    ):
        state, reason, exit_code, code = case.split()
        values: dict[str, Any] = {"reason": reason, "exit_code": exit_code}
        given = {name: value for name, value in values.items() if value != "-"}
        assert exit_code_of_job(job(JobState(state), **given)) == int(code), case


async def test_status_shows_the_job(fake, ferryman):
    final = FAILED.model_copy(
        update={
            "name": "my job",
            "tags": ["a"],
            "agent": "node-3",
            "started_at": wall_clock() - timedelta(seconds=90),
            "ended_at": wall_clock(),
            "usage": Usage(wall_s=90, cpu_s=88.2, peak_memory_bytes=3 << 20),
            "warnings": ["2 files were skipped"],
        }
    )
    said = await ferryman("status", 17, "--url", hosting(fake, final).url)
    as_json = await ferryman("status", 17, "--json", "--url", fake.url)
    for piece in (
        "job 17: Failed (exit_code)",
        "run.sh ended with exit code 3",
        'user ada, service example, named "my job", tagged a',
        "attempt 1 on node-3",
        "after 1m 30s",
        "exit code 3",
        "1m 30s wall time, 1m 28s CPU, 3.0 MiB memory",
        "warning: 2 files were skipped",
        "  | bad \\x1b[31mline",
    ):
        assert piece in said.out
    assert JobDoc.model_validate_json(as_json.out) == final
    fake.on("GET /api/v1/jobs/99", problem(404, "job_not_found", "Job 99 not found"))
    both = await ferryman("status", 99, 17, "--url", fake.url)
    assert (both.code, both.out.splitlines()[0]) == (1, "job 17: Failed (exit_code)")
    assert both.err.splitlines()[0] == "ferryman: Job 99 not found"


async def test_a_cancel_that_takes_long_says_what_it_waits_for(fake, ferryman, monkeypatch):
    monkeypatch.setattr(job_commands, "EXPLAIN_CANCEL_AFTER_S", 0.0)
    asked = job(JobState.UNKNOWN, agent="away", cancel_requested_at="2026-11-20T10:00:02.000000Z")
    seen = asyncio.Event()

    async def cancel(_: web.Request) -> web.StreamResponse:
        await seen.wait()
        return doc(job(JobState.CANCELLED)).response()

    async def look(_: web.Request) -> web.StreamResponse:
        seen.set()
        return doc(asked).response()

    fake.on(f"POST {HERE}/cancel", cancel).on(f"GET {HERE}", look)
    said = await ferryman("cancel", 17, "--url", fake.url)
    shown = await ferryman("status", 17, "--url", fake.url)
    first, last = said.err.splitlines()
    start = "the cancel is stored; agent away has not confirmed yet that no process"
    assert (said.code, first.startswith(start), last) == (0, True, "job 17 is cancelled")
    assert "not confirmed by the agent yet" in shown.out


async def test_lists_are_lines_with_tabs_where_nobody_looks(fake, ferryman):
    soon = wall_clock() + timedelta(minutes=20, seconds=30)
    waits = [
        QueueInfo(position=2, reason="to be sent at ten"),
        QueueInfo(position=1, reason="busy", expected_at=soon),
    ]
    queued = [job(JobState.QUEUED, id=16 - at, queue=why) for at, why in enumerate(waits)]
    scan = job(JobState.COMPLETED, id=14, name="scan", child_name="3", message="done")
    fake.on(JOBS, jobs(job(name="a\tb"), *queued, scan))
    said = await ferryman("list", "--url", fake.url)
    heads, *rows = (line.split("\t") for line in said.out.splitlines())
    assert heads[:4] == ["ID", "STATUS", "USER", "SERVICE"]
    assert rows[0][:4] == ["17", "Running", "ada", "example"]
    assert {row[0]: row[-2:] for row in rows} == {
        "17": ["a b", "it runs"],
        "16": ["", "to be sent at ten"],
        "15": ["", "busy; starts in about 20 min"],
        "14": ["3", "done"],
    }
    assert {len(row) for row in rows} == {len(heads)}
    as_json = await ferryman("list", "--json", "--url", fake.url)
    assert [one["id"] for one in json.loads(as_json.out)] == [17, 16, 15, 14]
    cut = await ferryman("list", "--limit", 3, "--url", fake.url)
    assert len(cut.out.splitlines()) == 1 + 3
    assert cut.err == "these are the newest 3; --limit N shows more, 0 all\n"
    for limit in (4, 0):
        whole = await ferryman("list", "--limit", limit, "--url", fake.url)
        assert (len(whole.out.splitlines()), whole.err) == (1 + 4, "")


@each(
    ("words", "query"),
    [
        ("", {}),
        ("--top-level", {"top_level": "true"}),
        ("--state queued", {"state": "Queued"}),
        ("--parent 1 --state FAILED", {"parent": "1", "state": "Failed"}),
        ("--batches --since 2h", {"batch": "true", "since": "2h"}),
        ("--dead-letters --reason timeout", {"dead_letter": "true", "reason": "timeout"}),
    ],
)
async def test_a_list_is_chosen_by_the_filters_of_the_server(fake, ferryman, words, query):
    fake.on(JOBS, jobs(job(id=3)))
    assert (await ferryman("list", *words.split(), "--url", fake.url)).code == 0
    assert fake.asked[JOBS][0].query == {**query, "limit": "51"}


def test_a_narrow_terminal_cuts_messages_before_numbers(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    ran = job(JobState.RUNNING, id=1234567, user_id="ada.lovelace", message="a long story " * 20)

    def line(columns: int, print_it: Any = lambda: show.print_jobs([ran])) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        print_it()
        return str(capsys.readouterr().out.splitlines()[1])

    wide = line(80)
    assert wide.split()[:4] == ["1234567", "Running", "ada.lovelace", "example"]
    assert re.search(r"2026-11-20 \d\d:\d\d:\d\d", wide)
    assert (len(wide) <= 80, wide.rstrip()[-1]) == (True, "…")
    assert line(50).split()[:4] == ["1234567", "Running", "ada.lovelace", "a"]
    assert line(40).split()[:3] == ["1234567", "Running", "a"]
    for columns in (20, 10):
        assert line(columns).split()[:2] == ["1234567", "Running"]
        assert len(line(columns)) <= 20

    attempts = line(50, lambda: show.print_attempts([ATTEMPT]))
    assert attempts.split() == ["1", "Failed", "node-3", "1m", "30s", "3", "exit_code"]

    def audit() -> None:
        heads = ("AT", "STATUS", "WHO", "ACTION", "TARGET")
        at = "2026-11-20 10:00:00"
        row = (at, "200", "the-portal-of-the-lab", "POST /api/v1/tokens", "a1b2c3d4e5")
        show.print_table(heads, [row], drop=("AT",), cut_last=False)

    assert line(40, audit).split()[-2:] == ["/api/v1/tokens", "a1b2c3d4e5"]  # is typed: never cut


@each(
    ("more", "text"),
    [
        ({"message": "all is well"}, "Running     all is well"),
        ({"message": "one\n\ntwo", "attempt": 2}, "Running     (attempt 2) one two"),
        ({"message": "well", "event": "job.notice"}, "notice      well"),
        ({"event": "job.notice", "fields": {"page": "3"}}, "notice      page=3"),
        (
            {"message": "m", "event": "own.done", "source": "run.sh", "fields": {"page": "3\n4"}},
            "own.done    m page=3 4",
        ),
    ],
)
def test_what_happened_is_a_line(more, text):
    at = datetime(2026, 11, 20, 10, tzinfo=UTC)
    given = {"seq": 3, "at": at, "attempt": 1, "before": None, "status": "Running", **more}
    line = show.event_line(EventDoc.model_validate(given), at)
    assert line == f"   +0.00s  {text}"


async def test_waiting_says_once_why_a_job_waits(fake, ferryman, monkeypatch):
    monkeypatch.setattr(follow, "FIRST_POLL_S", 0.0)
    why = QueueInfo(position=1, reason="no agent of example is up")
    steps = [(JobState.QUEUED, "m"), (JobState.RUNNING, "one"), (JobState.COMPLETED, "two")]
    first, *rest = (event(at, state, said) for at, (state, said) in enumerate(steps, 1))

    def stuck() -> str:
        """A server whose job waits until it has been looked at."""
        looked_at = asyncio.Event()

        async def status(_: web.Request) -> web.StreamResponse:
            if len(fake.asked[f"GET {HERE}"]) >= 4:  # the first, and three while nothing happens
                looked_at.set()
            return doc(DONE if looked_at.is_set() else job(JobState.QUEUED, queue=why)).response()

        async def happened(request: web.Request) -> web.StreamResponse:
            if int(request.query["after"]) == 0:
                return await events(first)(request)
            await looked_at.wait()
            return await events(first, *rest)(request)

        return str(fake.on(f"GET {HERE}", status).on(f"GET {HERE}/events", happened).url)

    said = await ferryman("status", 17, "--wait", "--url", stuck())
    assert said.code == 0
    assert said.err.splitlines() == [
        "   +0.50s  Queued      m",
        "           waiting     no agent of example is up",
        "   +1.50s  Running     one",
        "   +2.50s  Completed   two",
    ]
    how: Any = {"terminal": True, "TTY_COMPATIBLE": "1", "COLUMNS": "100", "NO_COLOR": None}
    moving = await ferryman("status", 17, "--wait", "--url", stuck(), **how)
    assert re.search(r"0:00:00\S* \S*Queued  no agent of example is up", moving.err)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "\n", moving.err).splitlines()
    assert "   +2.50s  Completed   two" in [line.rstrip() for line in plain]


ENDS = {1: DONE, 2: FAILED.model_copy(update={"message": "m"}), 3: job(JobState.CANCELLED)}


async def test_waiting_for_several_says_each_end_and_takes_the_first_bad_code(fake, ferryman):
    for number, ended in ENDS.items():
        found = ended.model_copy(update={"id": number, "message": "m"})
        fake.on(f"GET /api/v1/jobs/{number}", doc(found))
    done = await ferryman("wait", 1, 2, 3, "--url", fake.url)
    assert (done.code, done.out) == (3, "")
    ends = ("1 Completed", "2 Failed (exit_code)", "3 Cancelled")
    assert done.err.splitlines() == [f"job {end}: m" for end in ends]
    other = await ferryman("wait", 3, 2, "--json", "-q", "--url", fake.url)
    assert (other.code, other.err) == (143, "")
    assert [one["id"] for one in json.loads(other.out)] == [3, 2]
    fine = await ferryman("status", 1, 1, "--wait", "-q", "--url", fake.url)
    assert (fine.code, fine.out.count("job 1: Completed")) == (0, 2)


def running(fake: FakeServer) -> FakeServer:
    """Jobs 1 and 2 run on."""

    async def status(request: web.Request) -> web.StreamResponse:
        if request.query.get("wait") not in {None, "0.000"}:
            await never(request)
        return doc(job(id=int(request.path.rpartition("/")[2]))).response()

    async def happened(request: web.Request) -> web.StreamResponse:
        return await (never if float(request.query["wait"]) else events())(request)

    fake.on("GET /api/v1/jobs/{id}", status).on("GET /api/v1/jobs/{id}/events", happened)
    fake.on("POST /api/v1/jobs/1/cancel", doc(job(JobState.CANCELLED, id=1)))
    items = [{"id": one, "ok": True, "code": "", "message": ""} for one in (2, 1)]
    bulk = doc({"items": items, "more": False, "next": None})
    return fake.on("POST /api/v1/jobs/bulk", bulk)


@each("ids", [(2,), (1, 2)])
async def test_a_wait_that_is_over_is_124_and_the_job_goes_on(fake, ferryman, ids):
    running(fake).on("GET /api/v1/jobs/1", doc(job(JobState.COMPLETED, id=1)))
    done = await ferryman("wait", *ids, "--timeout", "0s", "-q", "--url", fake.url)
    assert (done.code, done.out) == (124, "")
    assert done.err.splitlines() == [
        "ferryman: job 2 is still Running after 0s; it goes on",
        f"wait again: ferryman wait {' '.join(map(str, ids))} --url {fake.url}",
    ]


@each(
    ("ids", "cancel", "said"),
    [
        ([1], False, "the job goes on: ferryman status 1 --url {}\n"),
        ([1, 2], False, "the jobs go on: ferryman status 1 2 --url {}\n"),
        ([1], True, "cancelling job 1\njob 1 is cancelled\n"),
        ([2, 1], True, "2 jobs cancelled\n"),
    ],
)
async def test_ctrl_c_leaves_jobs_running_unless_asked(fake, capfd, ids, cancel, said):
    asked = running(fake).asked
    async with Client(fake.url, retry_for=0) as client:
        server = Server(fake.url, None)
        waiting = asyncio.create_task(wait_for(client, server, ids, quiet=True, cancel=cancel))
        await until(lambda: bool(asked["GET /api/v1/jobs/{id}"]))
        waiting.cancel()  # what asyncio.run does at Ctrl-C
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert capfd.readouterr().err == said.format(fake.url)
    assert len(asked["POST /api/v1/jobs/1/cancel"]) == (cancel and ids == [1])
    bulk = [one.json for one in asked["POST /api/v1/jobs/bulk"]]
    assert bulk == [{"action": "cancel", "ids": ids}] * (cancel and len(ids) > 1)


async def test_last_is_the_newest_job_of_whoever_asks(fake, ferryman, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    fake.on("GET /api/v1/jobs/1", doc(job(id=1))).on("GET /api/v1/jobs/18", doc(job(id=18)))
    fake.on(JOBS, jobs(job(id=19, parent_id=18)))
    alone = await ferryman("status", "last", "--json", "--url", fake.url)
    assert json.loads(alone.out)["id"] == 18
    both = await ferryman("status", 1, "Last", "--json", "--url", fake.url)
    assert [one["id"] for one in json.loads(both.out)] == [1, 18]
    assert fake.asked[JOBS][0].query == {"user": "ada", "limit": "1"}
    fake.on(JOBS, jobs())
    nobody = await ferryman("logs", "last", "--url", fake.url, FERRYMAN_USER="grace")
    assert nobody.code == 2
    assert nobody.err.startswith(f"ferryman: last: user grace has no jobs at {fake.url}")
    who: dict[str, Any] = {"name": "t", "role": "user", "user_id": "ada", "scopes": []}
    who |= {"token_needed": True}
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    for role, user, asked_for in (("user", "ada", "ada"), ("operator", None, "root")):
        fake.on("GET /api/v1/whoami", doc(who | {"role": role, "user_id": user})).on(JOBS, jobs())
        await ferryman("status", "last", "--token", "t", "--url", fake.url)
        assert fake.asked[JOBS][0].query["user"] == asked_for
