"""``ferryman doctor`` and ``ferryman check``: what is wrong is found, and said with a command."""

import json
import os
import subprocess
import webbrowser
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ferryman import __version__
from ferryman.cli import doctor
from ferryman.cli.admin import _changed
from ferryman.dev import has_browser, open_page, welcome
from ferryman.models.operators import AgentDoc, ServiceDoc, SettingChange
from tests.client.fake_server import FakeServer, doc, filled, problem
from tests.kit import forked_programs
from tests.kit.each import each

NOW = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC)
SERVICE = filled(ServiceDoc, name="example", paused_message="new disk", offered=True)
WHO: dict[str, Any] = {"name": "ada's laptop", "role": "operator", "scopes": ["read", "admin"]}
WHO |= {"token_id": "abcde01234", "token_needed": True}
HEALTH: dict[str, Any] = {"status": "ok", "database": "ok", "version": __version__}


def sick(
    fake: FakeServer,
    *,
    health: dict[str, Any] = HEALTH,
    status: int = 200,
    date: datetime = NOW,
    who: dict[str, Any] | None = WHO,
    service: dict[str, Any] | None = None,
    agents: Sequence[dict[str, Any]] = (),
    troubles: tuple[dict[str, Any], ...] = (),
) -> str:
    """A server on which nothing is wrong but what is given; its URL."""
    api = "GET /api/v1"
    said = doc(health, status, Date=format_datetime(date, usegmt=True))
    refused = problem(401, "not_allowed", "no token was sent")
    fake.on("GET /health", said).on(f"{api}/whoami", doc(who) if who else refused)
    example = SERVICE.model_copy(update=service).model_dump(mode="json")
    fake.on(f"{api}/services", doc({"items": [example]}))
    fake.on(f"{api}/agents", doc({"items": agents}))
    return fake.on(f"{api}/status", doc({"status": "ok", "troubles": [*troubles]})).url


@pytest.fixture(autouse=True)
def quiet_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferryman.clock.wall_clock", lambda: NOW)


def agents(**changes: Any) -> dict[str, Any]:
    """A server's only agent."""
    health = {"sandbox": {"enforcement": {"memory": "hard", "pids": "hard"}, "warning": ""}}
    values = {"name": "north", "state": "active", "up": True, "reachable": True, "health": health}
    values |= {"kind": "ferryman", "in_settings": True, "created_at": NOW}
    return {"agents": [filled(AgentDoc, **values | changes).model_dump(mode="json")]}


async def test_where_nothing_is_wrong_each_thing_is_fine(fake, ferryman) -> None:
    done = await ferryman("doctor", "--token", "t", "--url", sick(fake, **agents()))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * len(lines)
    assert "ok       agent north: it gets jobs" in lines
    abouts = [line[9:].partition(":")[0] for line in lines]
    first = ["client", "disk", "server", "version", "clock", "token"]
    assert abouts == [*first, "service example", "agent north"]
    user = sick(fake, who=WHO | {"role": "user", "user_id": "ada"})
    done = await ferryman("doctor", "--url", user)  # a user is not asked about agents
    assert (done.code, "agent north" in done.out) == (0, False)


SOON = (NOW + timedelta(days=2)).isoformat()
AWAY = "agent north cannot be reached: n:9000: Connection refused"
WAITS = {"kind": "results_waiting", "message": "results wait", "is_serious": True}
WAITS |= {"advice": "make room"}
ASIDE = WAITS | {"kind": "files_moved_aside", "message": "files were moved", "is_serious": False}
ASIDE |= {"advice": "look whether somebody misses them"}
FULL: dict[str, Any] = {"health": {"status": "error", "message": "the disk is full"}, "status": 503}
SOFT = ["no cgroups", "limits that a job can get around: memory"]
CLOCK = "its clock is 3d ahead of the server's"
GONE = agents(trouble=AWAY, reachable=False)
LOST = agents(state="lost", trouble=AWAY, reachable=False)
RETIRED = agents(state="retired", trouble="agent north is retired")
IS_AGENT = "is an agent: commands are"


@each(
    ("how", "code", "text", "hint"),
    [
        (FULL, 75, "PROBLEM  server: the disk is full", None),
        (FULL | {"troubles": (WAITS, ASIDE)}, 75, "PROBLEM  server: results wait", "make room"),
        ({"troubles": (ASIDE,)}, 0, "warning  files: files were moved", "somebody misses them"),
        ({"who": None}, 77, "PROBLEM  token: no token was given", "ferryman token create"),
        ({"date": NOW - timedelta(hours=2)}, 0, "server's clock is 1h 59m behind", "timedatectl"),
        ({"date": NOW + timedelta(hours=2)}, 0, "server's clock is 2h ahead of", "timedatectl"),
        ({"date": NOW - timedelta(seconds=6)}, 0, "ok       clock: ", None),
        ({"health": HEALTH | {"version": "9.1.0"}}, 0, "has version 9.1.0", "pip install"),
        ({"health": HEALTH | {"agent": "vm"}}, 76, IS_AGENT, "--url"),
        ({"health": {"status": "ok", "agent": None}}, 76, IS_AGENT, "--url"),
        ({"who": WHO | {"expires_at": SOON}}, 0, "expires in 2d", "token rotate abcde01234"),
        ({"who": WHO | {"token_needed": False}}, 0, "the server asks for none", None),
        ({"service": {"paused": True}}, 0, "it is paused: new disk", "services resume example"),
        ({"service": {"offered": False}}, 0, "no agent offers it", "ferryman agents"),
        ({"service": {"trouble": AWAY}}, 1, f"no agent takes its jobs now: {AWAY}", "agents"),
        (GONE, 1, "PROBLEM  agent north: it cannot be reached: n:9000", "agents show north"),
        (LOST, 0, "agent north: it is lost", "start the agent on its host"),
        (RETIRED, 0, "ok       agent north: it is retired", None),
        ({"agents": []}, 1, "the server has no agents", "[agents.NAME]"),
        (agents(trouble="it is silent"), 1, "it is silent", "agents show north"),
        (agents(state="draining"), 0, "it is draining", "agents resume north"),
        (agents(warnings=SOFT), 0, "can get around: memory", "ferryman agent check"),
        (agents(warnings=[CLOCK]), 0, f"agent north: {CLOCK}", "timedatectl"),
    ],
)
async def test_what_is_wrong_is_found(fake, ferryman, how, code, text, hint) -> None:
    url = sick(fake, **agents() | how)
    done = await ferryman("doctor", "--url", url)
    parsed = await ferryman("doctor", "--json", "--url", url)
    assert (done.code, parsed.code) == (code, code), done.out
    lines = done.out.splitlines()
    at = next(at for at, line in enumerate(lines) if text in line)
    if hint is not None:
        assert hint in lines[at + 1]
        assert not lines[at].startswith("ok")
    findings = json.loads(parsed.out)["findings"]
    assert any(one["text"] in lines[at] for one in findings)


async def test_what_is_wrong_here_is_said_too(fake, ferryman, monkeypatch, tmp_path) -> None:
    done = await ferryman("doctor", "--url", "http://127.0.0.1:1")
    assert done.code == 69
    assert "PROBLEM  server: cannot reach http://127.0.0.1:1" in done.out
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    monkeypatch.setattr(doctor, "PACKAGED", tmp_path / "ferryman.list")
    monkeypatch.setattr("sys.prefix", "/opt/ferryman")
    (tmp_path / "ferryman.list").write_text("/opt/ferryman\n")
    done = await ferryman("doctor", "--url", sick(fake, health=HEALTH | {"version": "9.1.0"}))
    assert "warning  disk: 5.0 MiB are free here, for results" in done.out.splitlines()
    assert "apt-get install ./ferryman_9.1.0_*.deb" in done.out
    assert "pip install" not in done.out


async def test_on_the_host_of_an_agent_its_sandbox_is_tested(ferryman, monkeypatch, tmp_path):
    (tmp_path / "agent.toml").write_text("[agent]\n")
    monkeypatch.setattr(doctor, "INSTALLED", tmp_path)
    monkeypatch.setattr(doctor, "DEFAULT_URL", "http://127.0.0.1:1")
    rows = [{"limit": "memory", "enforcement": "hard", "passed": False, "seen": "it got more"}]
    table = {"report": {"backend": "bubblewrap", "version": "1"}, "rows": rows, "advice": []}
    asked: list[tuple[str, ...]] = []

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 1, json.dumps(table), "")

    monkeypatch.setattr(doctor, "_run", run)
    done = await ferryman("doctor", "--url", "http://127.0.0.1:1")
    assert asked == [("client_agent", "check", "--json")]
    assert done.out.splitlines()[2].startswith("warning  server: cannot reach http://127.0.0.1:1")
    assert "PROBLEM  limit memory: it does not hold: it got more" in done.out.splitlines()
    assert done.code == 1


# ------------------------------------------------------------------ ferryman check

BOTH = "[server]\nport = 5001\n[services.x]\n[agent]\nslots = 3\n"
BAD = "[server]\nprot = 1\n[services.x]\ntimeout = 'soon'\n[agent]\nslotss = 3\n"
MISTAKES = """\
server: file.toml: server.prot: no such setting; did you mean port?
server: file.toml: services.x.timeout: 'soon' is not a duration such as 90s, 1h30m or 10d
agent: file.toml: agent.slotss: no such setting; did you mean slots?
"""
MANY = "[services.s]\nruns_per_user = 11\n"
OPEN = "server: warning: server: no tokens: it starts only where"


@each(
    ("content", "code", "out", "err"),
    [
        (BOTH, 0, "server: fine\nagent: fine\n", ""),
        ("[agent]\nslots = 3\n", 0, "agent: fine\n", ""),
        (BAD, 2, "", MISTAKES),
        (None, 2, "", "file.toml: No such file or directory"),
        ("[agent\n", 2, "", "file.toml: not valid TOML"),
        (MANY, 0, "server: fine\n", "server: warning: services.s: runs_per_user is 11"),
        ('[server]\nhost = "0.0.0.0"\n', 0, "server: fine\n", OPEN),
        ('[agent]\nhost = "0.0.0.0"\n', 2, "", "agent: refusing to listen on 0.0.0.0 without a to"),
    ],
)
async def test_a_file_is_checked(ferryman, monkeypatch, tmp_path, content, code, out, err) -> None:
    """By the programs that have tables in it."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        module, *words = command[3:]
        return forked_programs.run(module, words, dict(os.environ))

    monkeypatch.setattr("subprocess.run", run)  # a fork: starting each afresh costs a second
    (tmp_path / "file.toml").unlink(missing_ok=True)
    if content is not None:
        (tmp_path / "file.toml").write_text(content)
    said = await ferryman("check", "file.toml")
    assert (said.code, said.out, err in said.err) == (code, out, True), said.err
    if not err:
        parsed = json.loads((await ferryman("check", "file.toml", "--json")).out)
        fine = [f"{one['program']}: fine" for one in parsed["programs"] if one["ok"]]
        assert fine == said.out.splitlines()


def test_a_change_is_said_in_a_line() -> None:
    for key, old, new, said in (
        ("services.more", None, "added", "added"),
        ("agents.a", "taken out (http://a)", None, "taken out (http://a)"),
        ("server.tls_cert", "a.pem", None, "a.pem -> not set"),
        ("services.s.max_runs", "1", "7", "1 -> 7"),
    ):
        assert _changed(SettingChange(key=key, old=old, new=new)) == f"{key}: {said}"


def test_nothing_is_opened_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    show = Mock(return_value=True)
    monkeypatch.setattr(webbrowser, "open", show)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not open_page("http://a/")
    monkeypatch.setenv("DISPLAY", ":0")
    assert open_page("http://b/")
    show.assert_called_once_with("http://b/")
    monkeypatch.setattr("sys.platform", "darwin")
    assert has_browser({})


def test_the_first_commands_show_a_token_where_the_server_asks_for_one() -> None:
    for asks in (False, True):
        lines = welcome("http://x", "example", Path("/data"), "http://x/", asks=asks)
        calls = [line for line in lines if "curl" in line]
        assert [("Bearer $FERRYMAN_TOKEN" in line) for line in calls] == [asks, asks]
