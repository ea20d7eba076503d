"""What commands say and return when they cannot do what they were asked, and their help."""

import json
import os
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
import typer
from typer.main import get_command

from ferryman.cli import exits, options
from ferryman.cli.app import app, command_first
from tests.client.fake_server import HERE, FakeServer, doc, hang_up, page, problem
from tests.kit.each import each

NOWHERE = ("--url", "http://127.0.0.1:1")
SUBMIT = ("submit", "bundle", "-q", "-s", "e", "-u", "a")
ME = problem(401, "", "a token is needed")
AGENT = problem(401, "unauthorized", "a valid token is needed")
SERVER = problem(401, "not_allowed", "a valid token is needed, the token is missing")
TIMEOUT = {"id": 0, "status": "Unknown", "message": "Invalid timeout: 'soon'", "code": "x"}
NO_ROUTE = {"code": "no_such_route", "message": "/api/v1/jobs: Not Found"}


STATUSES = {403: 77, 404: 1, 429: 75, 503: 75, 507: 75, 400: 65, 422: 65}
OTHER = "does not answer like a Ferryman server"


@each(
    ("words", "answer", "code", "text"),
    [
        *(
            ("submit", problem(status, "x", "This will not do."), code, ": This will not do.\n")
            for status, code in STATUSES.items()
        ),
        ("status 17", ME, 77, "ferryman: no token was given: a token is needed"),
        ("status 17 --token t", ME, 77, "ferryman: the token was not accepted: a token is needed"),
        ("status 17 --token t", AGENT, 76, "it is an agent; commands are for the server that uses"),
        ("status 17", SERVER, 77, "ferryman: no token was given\n"),
        ("list", doc(NO_ROUTE, 404), 76, f"{OTHER}: /api/v1/jobs: N"),
        ("submit", doc(TIMEOUT | {"part": "timeout"}, 400), 2, "ferryman: Invalid timeout: 'soon'"),
        ("submit", hang_up, 69, "there may be a job all the same"),
        ("submit", page("<h1>413</h1>", 413), 65, "ferryman: 413 Request Entity Too Large\n"),
        *(
            (words, answer, 76, OTHER)
            for answer in (
                page("<h1>Not Found</h1>", 404),
                page("File not found", 404, "text/plain"),
                page("Unsupported method", 501),
                page('["json", "of another kind"]', 400, "application/json"),
                page("<h1>Welcome</h1>"),
            )
            for words in ("submit", "status 17", "list")
        ),
    ],
)
async def test_what_was_wrong_is_said(fake, ferryman, bundle, words, answer, code, text):
    fake.on("**", answer)
    given = SUBMIT[1:] if words == "submit" else ()
    said = await ferryman(*words.split(), *given, "--url", fake.url)
    assert (said.code, said.out) == (code, "")
    assert text in said.err
    if text == OTHER:
        assert said.err.endswith(f"ferryman doctor --url {fake.url}\n")


async def test_a_server_that_cannot_be_reached_is_69(fake, ferryman):
    said = await ferryman("status", "17", "--url", fake.url.replace("http:", "https:"))
    assert said.code == 69
    assert "it does not speak TLS there" in said.err
    assert "http:// in place of https://?" in said.err
    async with FakeServer().serving() as gone:
        pass
    said = await ferryman("status", "17", "--url", gone.url)
    first, hint = said.err.splitlines()
    assert (said.code, first) == (69, f"ferryman: cannot reach {gone.url}: Connection refused")
    assert hint.endswith(f"ferryman doctor --url {gone.url}")


@each(
    ("url", "meant"),
    [
        ("localhost:5000", "http://localhost:5000"),
        ("http:/node-3:80/", "http://node-3:80"),
        ("https//node.example.org", "https://node.example.org:5000"),
        ("http://localhost:99999", "http://localhost:5000"),
        ("ftp://files:21", "http://files:21"),
        ("", "http://127.0.0.1:5000"),
        ("http://[::1", "http://127.0.0.1:5000"),
        ("http://node:5000/?x=1", "http://node:5000"),
        ("http://node:0", "http://node:5000"),
    ],
)
async def test_half_a_url_is_bad_usage_and_the_whole_one_is_suggested(ferryman, url, meant):
    said = await ferryman("list", "--url", url)
    assert (said.code, said.out) == (2, "")
    first, hint = said.err.splitlines()
    assert "is not a server's URL" in first
    assert hint == f"such as {meant} (--url, FERRYMAN_URL)"


NUMBERS = "give the numbers of jobs, or --all and options that choose; not both"
DURATION = "such as 90s, 1h30m or 10d"


@each(
    ("words", "text"),
    [
        ("submit -s example", "missing argument"),
        ("submit bundle -u ada", "--service"),
        ("SUBMIT --tag a,b", "comma"),
        ("SUBMIT --token-file empty", "its first line is empty"),
        ("SUBMIT --token-file missing", "--token-file missing: No such file or directory\n"),
        ("SUBMIT --token-file /dev/zero", "its first line is too long for a token"),
        ("SUBMIT --no-such-option", "--no-such-option"),
        ("SUBMIT --idempotency-key a\vb", "idempotency"),
        ("SUBMIT -o - --json", "--json"),
        ("SUBMIT --exclude /", "/"),
        *((f"status {number}", "is not the number of a job") for number in ("x", 0, 1.5, "9" * 30)),
        ("ticket --user ann --field tags", "write NAME=TEXT"),
        ("link 1 a --result", "give one of them"),
        ("list --state broken", "--state broken: there are Queued, "),
        ("list --state fail", "did you mean Failed? there are Queued, "),
        *((f"list --token s3cr{one}", "ferryman: the token has ") for one in "\r\u00f6\n"),
        ("list --url http://me:s3cret@127.0.0.1:1", "give the token as token=…, or in FERR"),
        ("frobnicate", "frobnicate"),
        ("sttaus 1", "Did you mean 'status'?\n"),
        ("status 1 --jsn", "did you mean --json?\n"),
        ("agents drian north", "Did you mean 'drain'?\n"),
        ("retry --yes", NUMBERS),
        ("cancel 17 18 --tag t --yes", NUMBERS),
        ("delete 17 --all --yes", NUMBERS),
        ("cancel 17 -s e --yes", NUMBERS),
        ("cancel --user ada --yes", "to cancel all jobs with user ada, add --all\n"),
        ("cancel --all", "cancel asks first: give --yes where there is no terminal"),
        *((f"wait 1 --timeout {text}", DURATION) for text in ("soon", "-1s", "1m1h", "9" * 40)),
    ],
)
async def test_bad_usage_is_2_and_sends_nothing(fake, ferryman, tmp_path, bundle, words, text):
    """And one line of JSON where that is asked for."""
    (tmp_path / "empty").touch()
    given = words.replace("SUBMIT", " ".join(SUBMIT)).split(" ")
    url = fake.on("**", page()).url
    said = await ferryman(*given, FERRYMAN_URL=url)
    assert (said.code, said.out, text in said.err) == (2, "", True), said.err
    if "id you mean '" in text or "--jsn" in words:
        assert re.fullmatch(r"what it takes: ferryman .*-h", said.err.splitlines()[1])
    parsed = await ferryman("--json", *given, FERRYMAN_URL=url)
    error = json.loads(parsed.err)["error"]
    assert (parsed.code, error["code"], parsed.err.count("\n")) == (2, "bad_argument", 1)
    assert "s3cr" not in said.err + parsed.err
    assert fake.asked["**"] == []


@each(
    ("words", "exit_code", "code"),
    [
        ("status 1 --url http://127.0.0.1:1", 69, "unreachable"),
        ("submit notes.txt -s e -u a", 65, "bad_bundle"),
        ("submit . -s e -u a -o notes.txt/x.zip", 73, "file_error"),
        ("", 2, "bad_argument"),
    ],
)
async def test_errors_can_be_one_line_of_json(ferryman, tmp_path, words, exit_code, code):
    for name in ("notes.txt", "run.sh"):
        (tmp_path / name).touch()
    for order in ((*words.split(), "--json"), ("--json", *words.split())):
        done = await ferryman(*order)
        assert (done.code, done.out) == (exit_code, "")
        error = json.loads(done.err)["error"]
        assert (error["code"], done.err.count("\n")) == (code, 1)
        assert error["message"]
        assert error["hint"] is None or any(one in error["hint"] for one in ("ferryman ", "--url"))


async def test_a_refusal_keeps_the_servers_code_and_the_number_of_the_request(fake, ferryman):
    why = "Job 17 not found in the database"
    fake.on(f"GET {HERE}", problem(404, "job_not_found", why))
    done = await ferryman("status", 17, "--json", "--url", fake.url)
    plain = await ferryman("status", 17, "--url", fake.url)
    hint = f"the jobs that you may see: ferryman list --url {fake.url}"
    error = {"code": "job_not_found", "message": why, "hint": hint, "request_id": "r-1"}
    assert json.loads(done.err) == {"error": error}
    assert plain.err.splitlines() == [f"ferryman: {why}", hint]
    words = ("submit", "-s", "e", "-u", "a", "--url", fake.url, "--", "--json")
    assert (await ferryman(*words)).err.startswith("ferryman: ")  # no JSON: it is a file's name


async def test_bulk_requests_go_on_behind_what_was_done(fake, ferryman, monkeypatch):
    def answer(number: int, following: str | None):
        items = [{"id": number, "ok": True, "code": "", "message": ""}]
        return doc({"items": items, "more": following is not None, "next": following})

    bulk = "POST /api/v1/jobs/bulk"
    fake.on(bulk, answer(21, "21"), answer(22, None))
    words = ("delete", "--all", "--dead-letters", "--tag", "t", "--yes", "--url", fake.url)
    done = await ferryman(*words)
    first = {"action": "delete", "filter": {"tag": "t", "dead_letter": "true"}}
    assert [one.json for one in fake.asked[bulk]] == [first, first | {"cursor": "21"}]
    assert (done.code, done.err) == (0, "job 21: delete: done\njob 22: delete: done\n")
    await ferryman("cancel", "--all", "--yes", "--url", fake.on(bulk, answer(1, None)).url)
    assert fake.asked[bulk][0].json == {"action": "cancel", "all": True}
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", mock.Mock(side_effect=typer.Abort))  # as typer says no
    done = await ferryman("cancel", "--all", "--user", "ada")
    assert (done.code, done.err) == (1, "ferryman: nothing was done\n")


# ------------------------------------------------------------------ words and help


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
def test_common_options_may_stand_before_the_command(words, ordered):
    assert command_first(words.split()) == ordered.split()


async def test_a_group_without_a_command_lists_and_without_any_the_help_is_shown(ferryman):
    for words in (("agents",), ("services",), ("agents", "--retired")):
        done = await ferryman(*words, *NOWHERE)
        assert (done.code, done.err.partition(":")[2].startswith(" cannot reach")) == (69, True)
    for more in ((), ("--url", "X")):
        done = await ferryman(*more)
        assert (done.code, done.out, done.err[:15]) == (2, "", "Usage: ferryman")
    said = await ferryman("--version")
    assert (said.code, said.out.startswith("ferryman ")) == (0, True)


PROGRAMS = {"server", "agent", "backup", "restore"}


def commands() -> list[tuple[str, ...]]:
    """The words of each command that has help of its own."""
    found = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        found += [(name,), *((name, one) for one in getattr(command, "commands", {}))]
    return [one for one in found if one[0] not in PROGRAMS and one != ("admin", "verify")]


async def test_all_help_is_of_one_style(ferryman):
    groups = {words[:1] for words in commands() if len(words) > 1}
    no_documents = groups | {("dev",), ("completion",), ("admin",), ()}
    assert await ferryman("status", "-h") == await ferryman("status", "--help")
    for words in [(), *commands()]:
        said = await ferryman(*words, "--help", COLUMNS="80")
        assert (said.code, said.err) == (0, ""), words
        assert said.out.startswith(" ".join(("Usage: ferryman", *words, "[OPTIONS]")))
        assert "--json" in said.out or words in no_documents, f"{words} has no --json"
        assert max(map(len, said.out.splitlines())) <= 80
        for line in said.out.splitlines()[1:]:
            assert not line.endswith("..."), f"the first sentence is too long: {line}"
            assert not any(kind in line for kind in ("<", "python -m"))


def test_every_command_that_a_hint_names_exists():
    named = set()
    pattern = re.compile(r"""(?<!app\.)(?<!settings\.)command\(f?["']([a-z-]+)""")
    for path in Path(options.__file__).parent.glob("*.py"):
        named |= set(pattern.findall(path.read_text()))
    named |= {one.words for one in exits._ENDS if one.words}
    assert {"doctor", "whoami", "list", "agents", "wait", "download", "status"} <= named
    assert named - {words[0] for words in commands()} == set()


async def test_programs_take_the_place_of_this_process(ferryman, monkeypatch):
    became: list[list[str]] = []

    def execv(path: str, arguments: list[str]) -> None:
        became.append([path, *arguments])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    words = ["--help", "check", "--port", "0", "-x"]
    for command in ("server", "agent"):
        await ferryman(command, *words)
    start = [sys.executable, sys.executable, "-P", "-m"]
    assert became == [[*start, module, *words] for module in ("server", "client_agent")]


async def test_without_the_extra_a_program_says_what_to_install(ferryman, monkeypatch):
    wanted = ["aiohttp>=3", "no-such.package<2,>=1; extra == 'server'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    for start in ("os.execv", "ferryman.dev.run"):
        monkeypatch.setattr(start, lambda *_: pytest.fail("it was started"))
    for command in ("server", "agent", "dev", "backup", "restore"):
        said = await ferryman(command)
        assert (said.code, said.out, said.err.count("\n")) == (69, "", 1)
        assert "(no-such.package): pip install 'ferryman[server]'" in said.err
