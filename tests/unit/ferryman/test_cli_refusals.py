"""What the command line says and returns when it cannot do what it was asked."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from aiohttp import web
from typer.main import get_command

from ferryman.cli import exits, options, show
from ferryman.cli.app import app
from tests.unit.ferryman.conftest import Host
from tests.unit.ferryman.fake_server import hang_up, job, problem, serving


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, 77), (404, 1), (429, 75), (503, 75), (507, 75), (400, 65), (422, 65)],
)
async def test_refusals_are_one_line_and_an_exit_code(ferryman, bundle, status, code):
    async def refuse(request: web.Request) -> web.StreamResponse:
        return problem(status, "x", "This will not do.")

    async with serving(("POST", "/upload", refuse)) as url:
        said = await ferryman("submit", bundle, "-q", "-s", "e", "-u", "a", "--url", url)
    assert (said.code, said.out) == (code, "")
    assert said.err.splitlines()[0] == "ferryman: This will not do."


async def test_a_missing_and_a_wrong_token_read_differently(ferryman):
    async def refuse(_: web.Request) -> web.StreamResponse:
        return problem(401, "", "a token is needed")

    async with serving(("GET", "/api/v1/jobs/17", refuse)) as url:
        missing = await ferryman("status", "17", "--url", url)
        wrong = await ferryman("status", "17", "--url", url, "--token", "wrong")
    assert (missing.code, wrong.code) == (77, 77)
    assert missing.err.startswith("ferryman: no token was given: a token is needed")
    assert wrong.err.startswith("ferryman: the token was not accepted: a token is needed")


async def test_an_agents_port_is_not_taken_for_a_servers_that_wants_a_token(ferryman):
    async def refuse(_: web.Request) -> web.StreamResponse:
        return problem(401, "unauthorized", "a valid token is needed")

    async with serving(("GET", "/api/v1/jobs/17", refuse)) as url:
        said = await ferryman("status", "17", "--url", url, "--token", "wrong")
    assert said.code == 76
    assert "it is an agent; commands are for the server that uses it" in said.err
    assert "--url" in said.err


async def test_a_ferryman_servers_own_words_for_a_missing_token_are_not_repeated(ferryman):
    async def refuse(_: web.Request) -> web.StreamResponse:
        return problem(401, "not_allowed", "a valid token is needed, the token is missing")

    async with serving(("GET", "/api/v1/jobs/17", refuse)) as url:
        said = await ferryman("status", "17", "--url", url)
    assert said.err.splitlines()[0] == "ferryman: no token was given"


@pytest.mark.parametrize("token", ["s3cret\r", "two words", "s3cr\u00f6t", "s3cret\nX: y"])
async def test_a_token_that_no_header_can_carry_is_bad_usage(ferryman, monkeypatch, token):
    monkeypatch.setenv("FERRYMAN_TOKEN", token)
    said = await ferryman("status", "17", "--url", "http://127.0.0.1:1")
    assert said.code == 2
    assert said.err.startswith("ferryman: the token has ")
    assert said.err.count("\n") == 1
    assert token[:3] not in said.err.removeprefix("ferryman: the token has ")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, "<h1>Not Found</h1>", "text/html"),
        (404, "File not found", "text/plain"),
        (501, "Unsupported method", "text/html"),
        (400, '["json", "of another kind"]', "application/json"),
        (200, "<h1>Welcome</h1>", "text/html"),
    ],
)
async def test_another_web_server_is_76(ferryman, bundle, status, body, kind):
    async def page(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=status, text=body, content_type=kind)

    async with serving(("*", "/{any:.*}", page)) as url:
        for words in (("submit", bundle, "-q", "-s", "e", "-u", "a"), ("status", "17"), ("list",)):
            said = await ferryman(*words, "--url", url)
            assert (said.code, said.out) == (76, ""), said.err
            first, hint = said.err.splitlines()
            assert "does not answer like a Ferryman server" in first
            assert hint.endswith(f"ferryman doctor --url {url}")


async def test_an_agents_address_is_not_a_servers(ferryman):
    async def no_route(request: web.Request) -> web.StreamResponse:
        body = {"code": "no_such_route", "message": f"{request.path}: Not Found"}
        return web.json_response(body, status=404)

    async with serving(("*", "/{any:.*}", no_route)) as url:
        said = await ferryman("list", "--url", url)
    assert said.code == 76
    assert "does not answer like a Ferryman server: /api/v1/jobs: Not Found" in said.err


async def test_of_an_upload_that_may_have_arrived_the_error_says_so(ferryman, bundle):
    async def lose(request: web.Request) -> web.StreamResponse:
        await request.read()
        hang_up(request)
        return web.Response()

    async with serving(("POST", "/upload", lose)) as url:
        said = await ferryman("submit", bundle, "-q", "-s", "e", "-u", "a", "--url", url)
    assert said.code == 69
    assert said.err.splitlines()[1].endswith("there may be a job all the same")


async def test_a_proxys_own_words_are_passed_on(ferryman, bundle):
    async def page(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=413, text="<h1>413</h1>", content_type="text/html")

    async with serving(("POST", "/upload", page)) as url:
        said = await ferryman("submit", bundle, "-q", "-s", "e", "-u", "a", "--url", url)
    assert (said.code, said.err) == (65, "ferryman: 413 Request Entity Too Large\n")


async def test_https_where_http_is_spoken_is_named_as_the_cause(ferryman):
    async with serving() as url:
        said = await ferryman("status", "17", "--url", url.replace("http:", "https:"))
    assert said.code == 69
    assert "it does not speak TLS there" in said.err
    assert "http:// in place of https://?" in said.err


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("localhost:5000", "http://localhost:5000"),
        ("localhost", "http://localhost:5000"),
        ("http:/node-3:80/", "http://node-3:80"),
        ("https//node.example.org", "https://node.example.org:5000"),
        ("http://localhost:99999", "http://localhost:5000"),
        ("http://localhost:port", "http://localhost:5000"),
        ("ftp://files:21", "http://files:21"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("http://", "http://127.0.0.1:5000"),
        ("", "http://127.0.0.1:5000"),
        ("http://[::1", "http://127.0.0.1:5000"),
        ("http://a b", "http://127.0.0.1:5000"),
        ("http://node:5000/?x=1", "http://node:5000"),
        ("http://node:0", "http://node:5000"),
    ],
)
async def test_half_a_url_is_bad_usage_and_the_whole_one_is_suggested(ferryman, url, meant):
    said = await ferryman("list", "--url", url)
    assert (said.code, said.out) == (2, "")
    first, hint = said.err.splitlines()
    assert first.startswith("ferryman: ")
    assert "is not a server's URL" in first
    assert hint == f"such as {meant} (--url, FERRYMAN_URL)"


async def test_a_token_in_the_url_is_refused_and_not_repeated(ferryman):
    said = await ferryman("list", "--url", "http://me:s3cret@127.0.0.1:1")
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines()[1].startswith("give the token as token=…, or in FERRYMAN_TOKEN")
    assert "s3cret" not in said.err


async def test_a_token_file_without_an_end_is_no_token(ferryman):
    said = await ferryman("list", "--token-file", "/dev/zero", "--url", "http://127.0.0.1:1")
    assert said.code == 2
    assert "--token-file /dev/zero: its first line is too long for a token" in said.err


def test_every_command_that_a_hint_names_exists():
    named = set()
    pattern = re.compile(r"""(?<!app\.)(?<!settings\.)command\(f?["']([a-z-]+)""")
    for path in Path(options.__file__).parent.glob("*.py"):
        named |= set(pattern.findall(path.read_text()))
    named |= {one.words for one in exits._ENDS if one.words}
    assert {"doctor", "whoami", "list", "agents", "wait", "download", "status"} <= named
    commands = getattr(get_command(app), "commands", {})
    assert named - set(commands) == set()


async def test_an_unreachable_server_is_69(ferryman):
    async with serving() as url:
        pass
    said = await ferryman("status", "17", "--url", url)
    assert said.code == 69
    first, hint = said.err.splitlines()
    assert first == f"ferryman: cannot reach {url}: Connection refused"
    assert hint.endswith(f"ferryman doctor --url {url}")


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
            (*good, "--tag", "a,b"),
            (*good, "--token-file", "empty"),
            (*good, "--token-file", "missing"),
            (*good, "--no-such-option"),
            ("status", "seventeen"),
            ("status", "0"),
            ("status", "17", "--url", "localhost:5000"),
            ("status", "17", "--url", "http://[::1"),
            (*good, "--idempotency-key", "a\r\nb"),
            (*good, "-o", "-", "--json"),
            (*good, "--exclude", "/"),
            ("list", "--state", "Levitating"),
            ("frobnicate",),
        ):
            said = await ferryman(*words)
            assert said.code == 2, words
            assert said.err
            assert said.out == ""
    assert host.uploads == []


async def test_a_limit_that_the_server_cannot_read_is_bad_usage_too(ferryman, bundle):
    async def refuse(request: web.Request) -> web.StreamResponse:
        body = {"id": 0, "status": "Unknown", "message": "Invalid timeout: 'soon'", "code": "x"}
        return web.json_response({**body, "part": "timeout"}, status=400)

    async with serving(("POST", "/upload", refuse)) as url:
        words = ("submit", bundle, "-s", "example", "-u", "ada", "--timeout", "soon")
        said = await ferryman(*words, "--url", url, "-q")
    assert (said.code, said.out, said.err) == (2, "", "ferryman: Invalid timeout: 'soon'\n")


async def test_what_cannot_be_a_bundle_is_65(ferryman, tmp_path):
    (tmp_path / "notes.txt").touch()
    said = await ferryman("submit", "notes.txt", "-s", "example", "-u", "ada")
    assert said.code == 65
    assert said.err.startswith("ferryman: no run.sh: ")
    assert said.err.count("\n") == 1


COMMANDS = ("submit", "status", "logs", "download", "cancel", "list", "dev")


@pytest.mark.parametrize("command", COMMANDS)
async def test_help_has_words_for_values_and_none_for_switches(ferryman, command):
    short, long = await ferryman(command, "-h"), await ferryman(command, "--help")
    assert short == long
    assert (short.code, short.err) == (0, "")
    assert short.out.startswith(f"Usage: ferryman {command} [OPTIONS]")
    assert not re.search(r"<[a-z]+( range|\[\w+\])?>|python -m", short.out)


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


@pytest.mark.parametrize("command", ["server", "agent", "dev", "backup", "restore"])
async def test_without_the_extra_a_program_says_what_to_install(ferryman, monkeypatch, command):
    wanted = ["aiohttp>=3", "no-such.package<2,>=1; extra == 'server'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    for start in ("os.execv", "ferryman.dev.run"):
        monkeypatch.setattr(start, lambda *_: pytest.fail("it was started"))
    said = await ferryman(command)
    assert (said.code, said.out) == (69, "")
    assert "(no-such.package): pip install 'ferryman[server]'" in said.err
    assert said.err.count("\n") == 1
