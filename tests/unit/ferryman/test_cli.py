"""The command line against a fake server: what goes where, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from aiohttp import web

from ferryman import JobState
from ferryman.cli import follow, jobs, show
from ferryman.cli.exits import exit_code_of_job
from ferryman.clock import wall_clock
from shared.wire import EventDoc, EventPage, JobDoc, QueueInfo, Reason, Usage
from tests.unit.ferryman.conftest import ZIP, Host
from tests.unit.ferryman.fake_server import answer, job, problem, serving

FAILED = job(
    JobState.FAILED,
    reason=Reason.EXIT_CODE,
    exit_code=3,
    message="run.sh ended with exit code 3",
    stderr_tail="line one\nbad \x1b[31mline\n",
)


async def test_submit_prints_the_number_alone_on_stdout(ferryman, bundle):
    host = Host(job(JobState.QUEUED))
    async with host.serving() as url:
        said = await ferryman("submit", bundle, "-s", "example", "-u", "ada", "--url", url)
    assert (said.code, said.out) == (0, "17\n")
    assert said.err.splitlines() == [
        "sending 1 file (8 B)",
        f"job 17 is accepted; follow it: ferryman status 17 --wait --url {url}",
    ]
    assert host.uploads[0].fields == {"user_id": "ada", "service": "example"}


async def test_submit_passes_on_what_it_is_given(ferryman, bundle, tmp_path):
    host = Host(job(JobState.QUEUED))
    (tmp_path / "token").write_text("secret\n")
    words = ("--name", "n", "--tag", "a", "--tag", "b", "--timeout", "1h30m", "--quiet", "--json")
    limits = ("--memory", "64MiB", "--cpus", "0.5", "--pids", "32", "--disk", "1GB")
    async with host.serving() as url:
        said = await ferryman(
            *("submit", bundle, "-s", "example", "-u", "ada", "--url", url, *words),
            *(*limits, "--token-file", tmp_path / "token", "--idempotency-key", "k"),
        )
    assert said.err == ""
    assert json.loads(said.out) == {
        "id": 17,
        "status": "Queued",
        "message": "Job successfully uploaded",
        "idempotency_key": "k",
        "warnings": [],
    }
    assert host.uploads[0].fields["tags"] == "a,b"
    assert host.uploads[0].fields["timeout"] == "1h30m"
    shown = {name: host.uploads[0].fields[name] for name in ("memory", "cpus", "pids", "disk")}
    assert shown == {"memory": "64MiB", "cpus": "0.5", "pids": "32", "disk": "1GB"}
    assert host.uploads[0].key == "k"
    assert host.headers == ["Bearer secret"]


async def test_the_environment_stands_in_for_options(ferryman, bundle, monkeypatch):
    host = Host(job(JobState.QUEUED))
    async with host.serving() as url:
        monkeypatch.setenv("FERRYMAN_URL", url)
        monkeypatch.setenv("FERRYMAN_USER", "grace")
        monkeypatch.setenv("FERRYMAN_SERVICE", "haddock")
        monkeypatch.setenv("FERRYMAN_TOKEN", "from-env")
        assert (await ferryman("submit", bundle)).code == 0
    assert host.uploads[0].fields == {"user_id": "grace", "service": "haddock"}
    assert host.headers == ["Bearer from-env"]


async def test_without_a_user_the_login_name_is_used_if_it_fits(ferryman, bundle, monkeypatch):
    host = Host(job(JobState.QUEUED))
    async with host.serving() as url:
        for login, code in (("linus", 0), ("no spaces allowed", 2)):
            monkeypatch.setattr("getpass.getuser", lambda login=login: login)
            said = await ferryman("submit", bundle, "-s", "example", "--url", url)
            assert said.code == code
            assert ("--user" in said.err) == (code == 2)
    assert [upload.fields["user_id"] for upload in host.uploads] == ["linus"]


async def test_waiting_shows_states_and_times_on_stderr_and_takes_the_jobs_exit_code(
    ferryman, bundle
):
    host = Host(FAILED)
    async with host.serving() as url:
        words = ("submit", bundle, "-s", "example", "-u", "ada", "--url", url, "--wait")
        said = await ferryman(*words)
        quiet = await ferryman(*words, "--quiet")
    assert (said.code, said.out) == (3, "17\n")
    assert said.err.splitlines() == [
        "sending 1 file (8 B)",
        "   +0.50s  Queued      step 0",
        "   +1.50s  Running     step 1",
        "   +2.50s  Failed      step 2",
        "job 17 Failed (exit_code): run.sh ended with exit code 3",
        "last lines of stderr:",
        "  | line one",
        "  | bad \\x1b[31mline",
        f"what it left, logs included: ferryman download 17 --partial --url {url}",
    ]
    assert (quiet.code, quiet.err) == (3, "\n".join(said.err.splitlines()[4:]) + "\n")


async def test_output_waits_and_fetches(ferryman, bundle, tmp_path):
    host = Host(job(JobState.COMPLETED))
    words = ("submit", bundle, "-s", "example", "-u", "ada", "--output", "out/", "--json")
    async with host.serving() as url:
        said = await ferryman(*words, "--url", url)
    assert said.code == 0
    assert JobDoc.model_validate_json(said.out) == host.final
    assert (tmp_path / "out" / "job-17.zip").read_bytes() == ZIP
    assert "saved out/job-17.zip (22 B)" in said.err


async def test_a_result_can_go_to_stdout_and_the_number_to_stderr(ferryman, bundle, tmp_path):
    async with Host(job(JobState.COMPLETED)).serving() as url:
        words = ("submit", bundle, "-s", "e", "-u", "a", "-o", "-", "--url", url)
        said = await ferryman(*words)
    assert (said.code, said.out.encode()) == (0, ZIP)
    assert "job 17" in said.err.splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


async def test_an_impossible_output_is_refused_before_anything_is_sent(ferryman, bundle):
    host = Host(job(JobState.COMPLETED))
    async with host.serving() as url:
        words = ("submit", bundle, "-s", "e", "-u", "a", "--url", url)
        said = await ferryman(*words, "--output", bundle / "run.sh" / "x.zip")
    assert said.code == 73
    assert host.uploads == []


@pytest.mark.parametrize(
    ("final", "code"),
    [
        (job(JobState.COMPLETED), 0),
        (job(JobState.FAILED, reason=Reason.EXIT_CODE, exit_code=3), 3),
        (job(JobState.FAILED, reason=Reason.EXIT_CODE, exit_code=256), 1),
        (job(JobState.FAILED, reason=Reason.AGENT_LOST), 1),
        (job(JobState.FAILED, reason=Reason.TIMEOUT, exit_code=143), 124),
        (job(JobState.FAILED, reason=Reason.QUEUE_TIMEOUT), 124),
        (job(JobState.FAILED, reason=Reason.MEMORY_LIMIT, exit_code=137), 137),
        (job(JobState.CANCELLED), 143),
        (job(JobState.CLEANED), 0),
        (job(JobState.CLEANED, reason=Reason.EXIT_CODE, exit_code=3), 3),
    ],
)
def test_the_exit_code_of_a_job(final, code):
    assert exit_code_of_job(final) == code


async def test_status_shows_the_job(ferryman):
    final = job(
        JobState.FAILED,
        name="my job",
        tags=["a"],
        reason=Reason.EXIT_CODE,
        exit_code=3,
        message="run.sh ended with exit code 3",
        agent="node-3",
        started_at="2026-11-20T10:00:01.000000Z",
        ended_at="2026-11-20T10:01:31.000000Z",
        usage=Usage(wall_s=90, cpu_s=88.2, peak_memory_bytes=3 << 20),
        stderr_tail="oops\n",
        warnings=["2 files were skipped"],
    )
    async with Host(final).serving() as url:
        said = await ferryman("status", "17", "--url", url)
        as_json = await ferryman("status", "17", "--url", url, "--json")
        waited = await ferryman("status", "17", "--url", url, "--wait", "-q")
    assert said.code == 0
    for piece in (
        "job 17: Failed (exit_code)",
        "run.sh ended with exit code 3",
        'user ada, service example, named "my job", tagged a',
        "attempt 1 on node-3",
        "after 1m 30s",
        "exit code 3",
        "1m 30s wall time, 1m 28s CPU, 3.0 MiB memory",
        "warning: 2 files were skipped",
        "  | oops",
    ):
        assert piece in said.out
    assert JobDoc.model_validate_json(as_json.out) == final
    assert (waited.code, waited.out) == (3, said.out)


async def test_download_prints_the_file(ferryman, tmp_path):
    async with Host(job(JobState.COMPLETED)).serving() as url:
        said = await ferryman("download", "17", "--url", url)
        part = await ferryman("download", "17", "--url", url, "--partial", "-o", "p.zip", "-q")
        parsed = await ferryman("download", "17", "--url", url, "--json", "-o", "p.zip", "-q")
        both = await ferryman("download", "17", "--url", url, "--json", "-o", "-")
    assert (said.code, said.out) == (0, "job-17.zip\n")
    assert (part.code, part.out, part.err) == (0, "p.zip\n", "")
    about = {"job_id": 17, "path": "p.zip", "size": len(ZIP), "sha256": sha256(ZIP).hexdigest()}
    assert json.loads(parsed.out) == about
    assert both.code == 2
    assert (tmp_path / "job-17.zip").read_bytes() == (tmp_path / "p.zip").read_bytes() == ZIP


async def test_cancel_says_so(ferryman):
    async with Host(job(JobState.CANCELLED)).serving() as url:
        said = await ferryman("cancel", "17", "--url", url)
        as_json = await ferryman("cancel", "17", "--url", url, "--json")
    assert (said.code, said.err) == (0, "job 17 is cancelled\n")
    assert json.loads(as_json.out)["status"] == "Cancelled"


async def test_a_cancel_that_takes_long_says_what_it_waits_for(ferryman, monkeypatch):
    monkeypatch.setattr(jobs, "EXPLAIN_CANCEL_AFTER_S", 0.0)
    asked = job(JobState.UNKNOWN, agent="away", cancel_requested_at="2026-11-20T10:00:02.000000Z")
    seen = asyncio.Event()

    async def cancel(_: web.Request) -> web.StreamResponse:
        await seen.wait()
        return answer(job(JobState.CANCELLED))

    async def look(_: web.Request) -> web.StreamResponse:
        seen.set()
        return answer(asked)

    routes = ("POST", "/api/v1/jobs/17/cancel", cancel), ("GET", "/api/v1/jobs/17", look)
    async with serving(*routes) as url:
        said = await ferryman("cancel", "17", "--url", url)
        shown = await ferryman("status", "17", "--url", url)
    first, last = said.err.splitlines()
    assert first.startswith(
        "the cancel is stored; agent away has not confirmed yet that no process"
    )
    assert (said.code, last) == (0, "job 17 is cancelled")
    assert "not confirmed by the agent yet" in shown.out


async def test_warnings_are_shown_by_whoever_waits(ferryman, bundle):
    final = job(
        JobState.COMPLETED, warnings=["memory: 1TB was asked for, service e allows 2.0 GiB"]
    )
    async with Host(final).serving() as url:
        words = ("submit", bundle, "-s", "e", "-u", "a", "--wait", "--url", url)
        said, quiet = await ferryman(*words), await ferryman(*words, "--quiet")
    assert "warning: memory: 1TB was asked for, service e allows 2.0 GiB\n" in said.err
    assert "warning" not in quiet.err


@pytest.mark.parametrize("text", ["abc", "0", "1.5", "9" * 30])
async def test_what_is_not_the_number_of_a_job_is_bad_usage(ferryman, text):
    said = await ferryman("status", text)
    assert said.code == 2
    assert f"'{text}' is not the number of a job" in " ".join(said.err.split())


async def test_files_that_cannot_be_used_are_named_without_numbers_of_errors(ferryman, bundle):
    token = await ferryman("list", "--token-file", "/nonexistent")
    assert (token.code, token.err) == (
        2,
        "ferryman: --token-file /nonexistent: No such file or directory\n",
    )
    async with Host(job(JobState.COMPLETED)).serving() as url:
        written = await ferryman("download", "17", "-o", "/proc/x.zip", "--url", url)
    assert written.code == 73
    assert written.err.startswith("ferryman: /proc/")
    assert "Errno" not in written.err


async def test_lists_are_lines_with_tabs_where_nobody_looks(ferryman):
    async with Host(job(JobState.RUNNING)).serving() as url:
        said = await ferryman("list", "--url", url)
        as_json = await ferryman("list", "--url", url, "--json")
    heads, first, second = (line.split("\t") for line in said.out.splitlines())
    assert heads[:4] == ["ID", "STATUS", "USER", "SERVICE"]
    assert first[:4] == ["17", "Running", "ada", "example"]
    assert (second[0], second[5], len(second)) == ("16", "a b", len(heads))
    assert [one["id"] for one in json.loads(as_json.out)] == [17, 16]


async def test_a_list_says_why_each_job_waits_and_names_children(ferryman):
    waits = [
        QueueInfo(position=2, reason="to be sent at ten"),
        QueueInfo(
            position=1, reason="busy", expected_at=wall_clock() + timedelta(minutes=20, seconds=30)
        ),
    ]
    host = Host(job(JobState.RUNNING, message="it runs"))
    host.listed = [
        host.final,
        *(job(JobState.QUEUED, id=16 - at, queue=why) for at, why in enumerate(waits)),
        job(JobState.COMPLETED, id=14, name="scan", child_name="3", message="done"),
    ]
    async with host.serving() as url:
        said = await ferryman("list", "--url", url)
    shown = {line.split("\t")[0]: line.split("\t")[-2:] for line in said.out.splitlines()[1:]}
    assert shown == {
        "17": ["", "it runs"],
        "16": ["", "to be sent at ten"],
        "15": ["", "busy; starts in about 20 min"],
        "14": ["3", "done"],
    }


async def test_a_list_that_is_cut_says_so(ferryman):
    host = Host(job(JobState.RUNNING))
    async with host.serving() as url:
        cut = await ferryman("list", "--url", url, "--limit", "1")
        whole = await ferryman("list", "--url", url, "--limit", "2")
        every = await ferryman("list", "--url", url, "--limit", "0")
    assert len(cut.out.splitlines()) == 1 + 1
    assert cut.err == "these are the newest 1; --limit N shows more, 0 all\n"
    for said in (whole, every):
        assert (len(said.out.splitlines()), said.err) == (1 + 2, "")


@pytest.mark.parametrize("state", ["queued", "QUEUED", "Queued"])
async def test_states_may_be_written_in_any_case(ferryman, state):
    host = Host(job(JobState.RUNNING))
    asked: list[str] = []

    async def page(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["state"])
        return await host.list(request)

    async with serving(("GET", "/api/v1/jobs", page)) as url:
        assert (await ferryman("list", "--json", "--url", url, "--state", state)).code == 0
    assert asked == ["Queued"]


async def test_a_list_may_leave_the_children_of_batches_out(ferryman):
    host = Host(job(JobState.RUNNING))
    asked: list[str | None] = []

    async def page(request: web.Request) -> web.StreamResponse:
        asked.append(request.query.get("top_level"))
        return await host.list(request)

    async with serving(("GET", "/api/v1/jobs", page)) as url:
        for words in ((), ("--top-level",)):
            assert (await ferryman("list", "--json", "--url", url, *words)).code == 0
    assert asked == [None, "true"]


async def test_which_server_may_be_said_before_the_command(ferryman, bundle):
    host = Host(job(JobState.QUEUED))
    words = ("submit", bundle, "-s", "example", "-u", "ada")
    async with host.serving() as url:
        apart = await ferryman("--url", url, "--token", "t", *words)
        joined = await ferryman(f"--url={url}", *words)
        behind = await ferryman("--url", "http://127.0.0.1:1", *words, "--url", url)
    assert (apart.code, joined.code, behind.code) == (0, 0, 0)
    assert host.headers == ["Bearer t", None, None]
    assert (await ferryman("--url")).code == 2


async def test_a_download_can_go_to_stdout(ferryman, tmp_path):
    async with Host(job(JobState.COMPLETED)).serving() as url:
        said = await ferryman("download", "17", "--url", url, "--output", "-")
    assert (said.code, said.out.encode(), said.err) == (0, ZIP, "")
    assert list(tmp_path.iterdir()) == []


async def test_why_there_is_no_result_comes_with_a_command(ferryman):
    async def none(_: web.Request) -> web.StreamResponse:
        why = "job 17 is Failed: exit code 3. What it left: /download_partial/17"
        return problem(409, "no_result", why)

    async with serving(("GET", "/api/v1/jobs/17/result", none)) as url:
        said = await ferryman("download", "17", "--url", url)
    assert said.code == 1
    assert said.err.splitlines() == [
        "ferryman: job 17 is Failed: exit code 3",
        f"what it left, logs included: ferryman download 17 --partial --url {url}",
    ]


async def test_a_result_that_is_not_there_yet_comes_with_a_command(ferryman):
    async def early(_: web.Request) -> web.StreamResponse:
        return answer(job(), 202)

    async with serving(("GET", "/api/v1/jobs/17/result", early)) as url:
        done = await ferryman("download", "17", "--url", url)
    assert (done.code, done.out) == (75, "")
    assert done.err.splitlines() == [
        "ferryman: the job has not ended, so there is no result yet",
        f"what there is now, logs included: ferryman download 17 --partial --url {url}",
    ]


class Stuck(Host):
    """Its job waits until it has been looked at."""

    def __init__(self) -> None:
        super().__init__(job(JobState.COMPLETED))
        self.looks = 0
        self.looked_at = asyncio.Event()

    async def status(self, _: web.Request) -> web.StreamResponse:
        self.looks += 1
        if self.looks >= 4:  # the first, and three while nothing happens
            self.looked_at.set()
        waiting = QueueInfo(position=1, reason="no agent of example is up")
        early = job(JobState.QUEUED, queue=waiting, created_at="2026-11-20T10:00:00.000000Z")
        return answer(self.final if self.looked_at.is_set() else early)

    async def events(self, request: web.Request) -> web.StreamResponse:
        if int(request.query["after"]) == 0:
            at = datetime(2026, 11, 20, 10, 0, 0, 500_000, UTC)
            queued = EventDoc(
                seq=1, at=at, attempt=1, before=None, status=JobState.QUEUED, message="m"
            )
            return answer(EventPage(items=[queued]))
        await self.looked_at.wait()
        return await super().events(request)


async def test_waiting_says_once_why_a_job_waits(ferryman, monkeypatch):
    monkeypatch.setattr(follow, "FIRST_POLL_S", 0.0)
    async with Stuck().serving() as url:
        said = await ferryman("status", "17", "--wait", "--url", url)
    assert said.code == 0
    assert said.err.splitlines() == [
        "   +0.50s  Queued      m",
        "           waiting     no agent of example is up",
        "   +1.50s  Running     step 1",
        "   +2.50s  Completed   step 2",
    ]


async def test_something_moves_on_a_terminal_while_a_job_does_not(ferryman, monkeypatch):
    monkeypatch.setattr(follow, "FIRST_POLL_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    async with Stuck().serving() as url:
        said = await ferryman("status", "17", "--wait", "--url", url)
    assert re.search(r"0:00:00\S* \S*Queued  no agent of example is up", said.err)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "\n", said.err).splitlines()
    assert "   +2.50s  Completed   step 2" in [line.rstrip() for line in plain]


def test_a_narrow_terminal_cuts_messages_before_numbers(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    listed = [
        job(JobState.RUNNING, id=1234567, user_id="ada.lovelace", message="a long story " * 20)
    ]

    def line(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        show.print_jobs(listed)
        line = capsys.readouterr().out.splitlines()[1]
        assert len(line) <= max(columns, len("1234567  Running   "))
        return str(line)

    assert line(80).split()[:4] == ["1234567", "Running", "ada.lovelace", "example"]
    assert re.search(r"2026-11-20 \d\d:\d\d:\d\d", line(80))
    assert line(80).rstrip().endswith("…")
    assert line(50).split()[:4] == ["1234567", "Running", "ada.lovelace", "a"]
    assert line(40).split()[:3] == ["1234567", "Running", "a"]
    assert line(20).split()[:2] == ["1234567", "Running"]
    assert line(10).split()[:2] == ["1234567", "Running"]


def test_what_one_would_type_is_never_cut(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    row = (
        "2026-11-20 10:00:00",
        "200",
        "the-portal-of-the-lab",
        "POST /api/v1/tokens",
        "a1b2c3d4e5",
    )
    show.print_table(
        ("AT", "STATUS", "WHO", "ACTION", "TARGET"), [row], drop=("AT",), cut_last=False
    )
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["/api/v1/tokens", "a1b2c3d4e5"]


async def test_what_the_server_warns_of_is_said_at_once(ferryman, bundle):
    host = Host(job(JobState.QUEUED, warnings=["timeout: 10d was asked for, example allows 1h"]))
    words = ("submit", bundle, "-s", "example", "-u", "ada")
    async with host.serving() as url:
        said = await ferryman(*words, "--timeout", "10d", "--url", url)
    assert "warning: timeout: 10d was asked for, example allows 1h" in said.err.splitlines()


async def test_of_several_jobs_those_that_are_there_are_shown(ferryman):
    async def status(request: web.Request) -> web.StreamResponse:
        if request.match_info["id"] == "17":
            return answer(job(JobState.COMPLETED))
        return problem(404, "job_not_found", "Job 99 not found in the database")

    async with serving(("GET", "/api/v1/jobs/{id}", status)) as url:
        said = await ferryman("status", "99", "17", "--url", url)
    assert (said.code, said.out.splitlines()[0]) == (1, "job 17: Completed")
    assert said.err.splitlines()[0] == "ferryman: Job 99 not found in the database"


def test_a_message_of_several_lines_stays_on_one():
    at = datetime(2026, 11, 20, 10, 0, 1, tzinfo=UTC)
    shown = EventDoc(
        seq=1, at=at, attempt=2, before=None, status=JobState.QUEUED, message="one\n\ntwo"
    )
    assert show.event_line(shown, at) == "   +0.00s  Queued      (attempt 2) one two"
