"""The command line against a stand-in: what goes where, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from ferryman import JobState, cli
from ferryman.cli import options, show
from ferryman.cli.exits import exit_of_job
from shared.wire import EventDoc, EventPage, JobDoc, JobPage, Reason, StatusBody, Usage
from tests.unit.ferryman.stand_in import (
    Upload,
    answer,
    job,
    problem,
    read_upload,
    repr_digest,
    serving,
)

S = JobState
ZIP = b"PK\x05\x06" + bytes(18)


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Call = Callable[..., Awaitable[Said]]


@pytest.fixture
def ferryman(capfd, monkeypatch, tmp_path) -> Call:
    """Runs a command line in a thread of this process; the loop here serves."""
    for name in list(os.environ):
        if name.startswith("FERRYMAN_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "BRIEF_S", 0.0)

    async def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["ferryman", *map(str, words)])

        def run() -> int:
            try:
                cli.main()
            except SystemExit as ending:
                return int(ending.code or 0)
            raise AssertionError("main() returned")

        code = await asyncio.to_thread(run)
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return call


class Host:
    """A server with one job."""

    def __init__(self, final: JobDoc) -> None:
        self.final = final
        self.uploads: list[Upload] = []
        self.headers: list[str | None] = []

    async def upload(self, request: web.Request) -> web.StreamResponse:
        self.uploads.append(await read_upload(request))
        self.headers.append(request.headers.get("Authorization"))
        return answer(StatusBody(id=17, status="Queued", message="Job successfully uploaded"), 201)

    async def status(self, _: web.Request) -> web.StreamResponse:
        return answer(self.final)

    async def events(self, request: web.Request) -> web.StreamResponse:
        states = (S.QUEUED, S.RUNNING, self.final.status)
        items = [
            EventDoc(
                seq=n + 1,
                at=f"2026-11-20T10:00:0{n}.500000Z",
                attempt=1,
                before=None,
                status=state,
                message=f"step {n}",
            )
            for n, state in enumerate(states)
        ]
        after = int(request.query["after"])
        return answer(EventPage(items=[item for item in items if item.seq > after]))

    async def result(self, _: web.Request) -> web.StreamResponse:
        return web.Response(
            body=ZIP, content_type="application/zip", headers={"Repr-Digest": repr_digest(ZIP)}
        )

    async def cancel(self, _: web.Request) -> web.StreamResponse:
        return answer(self.final)

    async def list(self, _: web.Request) -> web.StreamResponse:
        return answer(JobPage(items=[self.final, job(S.QUEUED, id=16, name="a\tb")], next=None))

    def serving(self):
        return serving(
            ("POST", "/upload", self.upload),
            ("GET", "/api/v1/jobs", self.list),
            ("GET", "/api/v1/jobs/17", self.status),
            ("GET", "/api/v1/jobs/17/events", self.events),
            ("GET", "/api/v1/jobs/17/result", self.result),
            ("GET", "/download_partial/17", self.result),
            ("POST", "/api/v1/jobs/17/cancel", self.cancel),
        )


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "run.sh").write_text("echo hi\n")
    return folder


FAILED = job(
    S.FAILED,
    reason=Reason.EXIT_CODE,
    exit_code=3,
    message="run.sh ended with exit code 3",
    stderr_tail="line one\nbad \x1b[31mline\n",
)


async def test_submit_prints_the_number_alone_on_stdout(ferryman, bundle):
    host = Host(job(S.QUEUED))
    async with host.serving() as url:
        said = await ferryman("submit", bundle, "-s", "example", "-u", "ada", "--url", url)
    assert (said.code, said.out) == (0, "17\n")
    assert said.err == f"job 17 is accepted; follow it: ferryman status 17 --wait --url {url}\n"
    assert host.uploads[0].fields == {"user_id": "ada", "service": "example"}


async def test_submit_passes_on_what_it_is_given(ferryman, bundle, tmp_path):
    host = Host(job(S.QUEUED))
    (tmp_path / "token").write_text("secret\n")
    words = ("--name", "n", "--tag", "a", "--tag", "b", "--timeout", "1h30m", "--quiet", "--json")
    async with host.serving() as url:
        said = await ferryman(
            *("submit", bundle, "-s", "example", "-u", "ada", "--url", url, *words),
            *("--token-file", tmp_path / "token", "--idempotency-key", "k"),
        )
    assert said.err == ""
    assert json.loads(said.out) == {
        "id": 17,
        "status": "Queued",
        "message": "Job successfully uploaded",
        "idempotency_key": "k",
    }
    assert host.uploads[0].fields["tags"] == "a,b"
    assert host.uploads[0].fields["timeout"] == "1h30m"
    assert host.uploads[0].key == "k"
    assert host.headers == ["Bearer secret"]


async def test_the_environment_stands_in_for_options(ferryman, bundle, monkeypatch):
    host = Host(job(S.QUEUED))
    async with host.serving() as url:
        monkeypatch.setenv("FERRYMAN_URL", url)
        monkeypatch.setenv("FERRYMAN_USER", "grace")
        monkeypatch.setenv("FERRYMAN_SERVICE", "haddock")
        monkeypatch.setenv("FERRYMAN_TOKEN", "from-env")
        assert (await ferryman("submit", bundle)).code == 0
    assert host.uploads[0].fields == {"user_id": "grace", "service": "haddock"}
    assert host.headers == ["Bearer from-env"]


async def test_without_a_user_the_login_name_is_used_if_it_fits(ferryman, bundle, monkeypatch):
    host = Host(job(S.QUEUED))
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
        "   +0.50s  Queued      step 0",
        "   +1.50s  Running     step 1",
        "   +2.50s  Failed      step 2",
        "job 17 Failed (exit_code): run.sh ended with exit code 3",
        "last lines of stderr:",
        "  | line one",
        "  | bad \\x1b[31mline",
        f"what it left, logs included: ferryman download 17 --partial --url {url}",
    ]
    assert (quiet.code, quiet.err) == (3, "\n".join(said.err.splitlines()[3:]) + "\n")


async def test_output_waits_and_fetches(ferryman, bundle, tmp_path):
    host = Host(job(S.COMPLETED))
    words = ("submit", bundle, "-s", "example", "-u", "ada", "--output", "out/", "--json")
    async with host.serving() as url:
        said = await ferryman(*words, "--url", url)
    assert said.code == 0
    assert JobDoc.model_validate_json(said.out) == host.final
    assert (tmp_path / "out" / "job-17.zip").read_bytes() == ZIP
    assert "saved out/job-17.zip (22 B)" in said.err


async def test_an_output_that_cannot_be_is_told_before_anything_is_sent(ferryman, bundle):
    host = Host(job(S.COMPLETED))
    async with host.serving() as url:
        words = ("submit", bundle, "-s", "e", "-u", "a", "--url", url)
        said = await ferryman(*words, "--output", bundle / "run.sh" / "x.zip")
    assert said.code == 73
    assert host.uploads == []


@pytest.mark.parametrize(
    ("final", "code"),
    [
        (job(S.COMPLETED), 0),
        (job(S.FAILED, reason=Reason.EXIT_CODE, exit_code=3), 3),
        (job(S.FAILED, reason=Reason.EXIT_CODE, exit_code=256), 1),
        (job(S.FAILED, reason=Reason.AGENT_LOST), 1),
        (job(S.FAILED, reason=Reason.TIMEOUT, exit_code=143), 124),
        (job(S.FAILED, reason=Reason.QUEUE_TIMEOUT), 124),
        (job(S.FAILED, reason=Reason.MEMORY_LIMIT, exit_code=137), 137),
        (job(S.CANCELLED), 143),
        (job(S.CLEANED), 0),
        (job(S.CLEANED, reason=Reason.EXIT_CODE, exit_code=3), 3),
    ],
)
def test_the_exit_code_of_a_job(final, code):
    assert exit_of_job(final) == code


async def test_status_shows_the_job(ferryman):
    final = job(
        S.FAILED,
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
    async with Host(job(S.COMPLETED)).serving() as url:
        said = await ferryman("download", "17", "--url", url)
        part = await ferryman("download", "17", "--url", url, "--partial", "-o", "p.zip", "-q")
    assert (said.code, said.out) == (0, "job-17.zip\n")
    assert (part.code, part.out, part.err) == (0, "p.zip\n", "")
    assert (tmp_path / "job-17.zip").read_bytes() == (tmp_path / "p.zip").read_bytes() == ZIP


async def test_cancel_says_so(ferryman):
    async with Host(job(S.CANCELLED)).serving() as url:
        said = await ferryman("cancel", "17", "--url", url)
        as_json = await ferryman("cancel", "17", "--url", url, "--json")
    assert (said.code, said.err) == (0, "job 17 is cancelled\n")
    assert json.loads(as_json.out)["status"] == "Cancelled"


async def test_lists_are_lines_with_tabs_where_nobody_looks(ferryman):
    async with Host(job(S.RUNNING)).serving() as url:
        said = await ferryman("list", "--url", url)
        as_json = await ferryman("list", "--url", url, "--json")
    heads, first, second = (line.split("\t") for line in said.out.splitlines())
    assert heads[:4] == ["ID", "STATUS", "USER", "SERVICE"]
    assert first[:4] == ["17", "Running", "ada", "example"]
    assert (second[0], second[5], len(second)) == ("16", "a b", len(heads))
    assert [one["id"] for one in json.loads(as_json.out)] == [17, 16]


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, 77), (403, 77), (404, 1), (429, 75), (503, 75), (507, 75), (400, 65), (422, 65)],
)
async def test_refusals_are_one_line_and_an_exit_code(ferryman, bundle, status, code):
    async def refuse(request: web.Request) -> web.StreamResponse:
        return problem(status, "x", "This will not do.")

    async with serving(("POST", "/upload", refuse)) as url:
        said = await ferryman("submit", bundle, "-s", "e", "-u", "a", "--url", url)
    assert (said.code, said.out, said.err) == (code, "", "ferryman: This will not do.\n")


async def test_nobody_there_is_69(ferryman):
    async with serving() as url:
        pass
    said = await ferryman("status", "17", "--url", url)
    assert said.code == 69
    assert said.err == f"ferryman: cannot reach {url}: Connection refused\n"


async def test_another_program_there_is_76(ferryman):
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<h1>hello</h1>", content_type="text/html")

    async with serving(("GET", "/api/v1/jobs/17", page)) as url:
        assert (await ferryman("status", "17", "--url", url)).code == 76


async def test_bad_usage_is_2_and_sends_nothing(ferryman, bundle, tmp_path):
    (tmp_path / "empty").touch()
    host = Host(job())
    async with host.serving() as url:
        good = ("submit", bundle, "-s", "example", "-u", "ada", "--url", url)
        for words in (
            ("submit", "-s", "example"),
            ("submit", bundle, "-u", "ada", "--url", url),
            (*good, "--timeout", "soon"),
            (*good, "--tag", "a,b"),
            (*good, "--token-file", "empty"),
            (*good, "--token-file", "missing"),
            (*good, "--no-such-option"),
            ("status", "seventeen"),
            ("status", "0"),
            ("status", "17", "--url", "localhost:5000"),
            ("list", "--state", "Levitating"),
            ("frobnicate",),
        ):
            said = await ferryman(*words)
            assert said.code == 2, words
            assert said.err
            assert said.out == ""
    assert host.uploads == []


async def test_what_cannot_be_a_bundle_is_65(ferryman, tmp_path):
    (tmp_path / "notes.txt").touch()
    said = await ferryman("submit", "notes.txt", "-s", "example", "-u", "ada")
    assert said.code == 65
    assert said.err.startswith("ferryman: no run.sh: ")
    assert said.err.count("\n") == 1


async def test_the_version_is_printed(ferryman):
    said = await ferryman("--version")
    assert said.code == 0
    assert said.out.startswith("ferryman ")


def test_nothing_a_job_writes_steers_the_terminal():
    assert show.printable("a\x1b]0;t\x07\rb\u202e\n\tc") == "a\\x1b]0;t\\x07\\rb\\u202e\n\tc"


@pytest.mark.parametrize(("command", "module"), [("server", "server"), ("agent", "client_agent")])
async def test_programs_get_every_argument_and_take_the_place_of_this_process(
    ferryman, monkeypatch, command, module
):
    became: list[list[str]] = []

    def execv(path: str, arguments: list[str]) -> None:
        became.append([path, *arguments])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    await ferryman(command, "--help", "check", "--port", "0", "-x")
    assert became == [
        [
            sys.executable,
            sys.executable,
            "-P",
            "-m",
            module,
            "--help",
            "check",
            "--port",
            "0",
            "-x",
        ]
    ]
