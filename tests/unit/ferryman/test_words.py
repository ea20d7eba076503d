"""The order of the words of a command line, nearest names, and errors for programs."""

from __future__ import annotations

import json

import pytest
import typer
from aiohttp import web
from typer.main import get_command

from ferryman import JobState
from ferryman.cli.app import app, command_first
from tests.kit.each import each
from tests.unit.ferryman.conftest import Host
from tests.unit.ferryman.fake_server import job, problem, serving


@each(
    ("words", "ordered"),
    [
        ("status 1 --url X", "status 1 --url X"),
        ("--url X status 1", "status 1 --url X"),
        ("--url=X --json status -q 1", "status --url=X --json -q 1"),
        ("--url X agents --retired --json", "agents --url X --retired --json"),
        ("agents --url X drain north", "agents drain --url X north"),
        ("--json logs -- --x", "logs --json -- --x"),
        ("--url X agents --json -h", "agents --url X --json -h"),
        ("server --config F --port 0", "server --config F --port 0"),
        ("-- --url X", "-- --url X"),
        ("--url X --urk", "--url X --urk"),
        ("", ""),
        ("--url X", ""),
        ("--urk", "--urk"),
    ],
)
def test_common_options_may_stand_before_the_command(words: str, ordered: str) -> None:
    assert command_first(words.split()) == ordered.split()


@pytest.mark.parametrize("words", [("agents",), ("services",), ("agents", "--retired")])
async def test_a_group_without_a_command_lists(ferryman, words) -> None:
    done = await ferryman(*words, "--url", "http://127.0.0.1:1")
    assert (done.code, done.err.partition(":")[2].startswith(" cannot reach")) == (69, True)


PASSED_ON = {"verify"}
"""Commands of ``ferryman admin`` on the data folder, whose program has the help."""


def commands() -> list[tuple[str, ...]]:
    """The words of each command that has help of its own."""
    found = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        found += [(name, *rest) for rest in [()] + [(one,) for one in inner]]
    passed_on = {("admin", name) for name in PASSED_ON}
    return [
        one
        for one in found
        if one[0] not in {"server", "agent", "backup", "restore"} and one not in passed_on
    ]


@pytest.mark.parametrize("words", [(), *commands()], ids=" ".join)
async def test_all_help_is_of_one_style(ferryman, monkeypatch, words) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, long = await ferryman(*words, "-h"), await ferryman(*words, "--help")
    assert short == long
    assert (short.code, short.err) == (0, "")
    assert short.out.startswith(" ".join(("Usage: ferryman", *words, "[OPTIONS]")))
    lines = short.out.splitlines()
    assert max(map(len, lines)) <= 80
    for line in lines[1:]:
        assert not line.endswith("..."), f"the first sentence is too long: {line}"
        assert not any(kind in line for kind in ("<", "python -m"))


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("sttaus", 1), "Did you mean 'status'?"),
        (("status", 1, "--jsn"), "did you mean --json?"),
        (("agents", "drian", "north"), "Did you mean 'drain'?"),
    ],
)
async def test_what_is_nearly_a_name_is_suggested(ferryman, words, nearest) -> None:
    done = await ferryman(*words)
    assert (done.code, done.out) == (2, "")
    first, hint = done.err.splitlines()
    assert first.startswith("ferryman: no such ")
    assert first.endswith(nearest)
    assert hint.startswith("what it takes: ferryman ")
    assert hint.endswith(" -h")


@pytest.mark.parametrize("words", [(), ("--url", "X")])
async def test_without_a_command_the_help_is_shown(ferryman, words) -> None:
    done = await ferryman(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: ferryman")
    for_programs = await ferryman(*words, "--json")
    assert json.loads(for_programs.err)["error"]["message"] == "a command is missing"


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (("status", "abc"), 2, "bad_argument"),
        (("status", 1, "--no-such"), 2, "bad_argument"),
        (("levitate",), 2, "bad_argument"),
        (("status", 1, "--url", "localhost"), 2, "bad_argument"),
        (("status", 1, "--url", "http://127.0.0.1:1"), 69, "unreachable"),
        (("submit", "notes.txt", "-s", "e", "-u", "a"), 65, "bad_bundle"),
        (("submit", "bundle", "-s", "e", "-u", "a", "-o", "notes.txt/x.zip"), 73, "file_error"),
        (("cancel", "--user", "ada"), 2, "bad_argument"),
    ],
)
async def test_errors_are_one_line_of_json_where_that_is_asked_for(
    ferryman, bundle, tmp_path, words, exit_code, code
) -> None:
    (tmp_path / "notes.txt").touch()
    for order in ((*words, "--json"), ("--json", *words)):
        done = await ferryman(*order)
        assert (done.code, done.out) == (exit_code, "")
        (line,) = done.err.splitlines()
        error = json.loads(line)["error"]
        assert error["code"] == code
        assert error["message"]
        assert error["hint"] is None or any(one in error["hint"] for one in ("ferryman ", "--url"))


async def test_a_refusal_keeps_the_servers_code_and_the_number_of_the_request(ferryman) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return problem(404, "job_not_found", "Job 17 not found in the database")

    async with serving(("GET", "/api/v1/jobs/17", refuse)) as url:
        done = await ferryman("status", 17, "--json", "--url", url)
        plain = await ferryman("status", 17, "--url", url)
    assert json.loads(done.err) == {
        "error": {
            "code": "job_not_found",
            "message": "Job 17 not found in the database",
            "hint": f"the jobs that you may see: ferryman list --url {url}",
            "request_id": "r-1",
        }
    }
    assert plain.err.splitlines() == [
        "ferryman: Job 17 not found in the database",
        f"the jobs that you may see: ferryman list --url {url}",
    ]


async def test_a_word_of_a_job_that_looks_like_an_option_is_none(ferryman, bundle) -> None:
    host = Host(job(JobState.QUEUED))
    async with host.serving() as url:
        done = await ferryman("submit", "-s", "e", "-u", "a", "--url", url, "--", "--json")
    assert done.err.startswith("ferryman: ")  # no JSON: it is the name of a file


async def test_a_question_that_is_not_answered_does_nothing(ferryman, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    def refuse(*_: object, **__: object) -> bool:
        raise typer.Abort  # which is what typer makes of it

    monkeypatch.setattr("typer.confirm", refuse)
    done = await ferryman("cancel", "--all", "--user", "ada")
    assert (done.code, done.err) == (1, "ferryman: nothing was done\n")


async def test_every_command_but_programs_prints_documents(ferryman) -> None:
    groups = {words[:1] for words in commands() if len(words) > 1}
    for words in set(commands()) - groups - {("dev",), ("completion",), ("admin",)}:
        done = await ferryman(*words, "--help")
        assert "--json" in done.out, f"{' '.join(words)} has no --json"
