"""``ferryman doctor``: what is wrong is found, and said with a command."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web

from ferryman import __version__
from ferryman.models.operators import AgentDoc
from tests.unit.ferryman.fake_server import problem, serving

NOW = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC)
SERVICE: dict[str, Any] = {
    "name": "example",
    "source": "file",
    "counts": {},
    "on_shutdown": "stop",
    "dead_letter": False,
    "retry": {"retries": 0},
    "limits": {"cpus": 1, "memory": 1, "pids": 1, "disk": 1, "log": 1, "results": 1}
    | {"network": False},
} | dict.fromkeys(
    (
        *("in_work", "counts_up_to", "runs_per_user", "max_runs", "queued_per_user", "timeout_s"),
        *("queue_timeout_s", "heartbeat_timeout_s", "expires_after_s", "forget_after_s"),
        *("max_retries", "infra_retries", "retry_later_delay_s", "retry_later_limit"),
        *("dead_letter_expires_after_s", "max_children"),
    ),
    0,
)
HARD = {"memory": "hard", "pids": "hard"}


def agent(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": "north",
        "id": "abc",
        "state": "active",
        "up": True,
        "reachable": True,
        "kind": "ferryman",
        "address": "http://n:9000",
        "in_settings": True,
        "jobs": 0,
        "running": 0,
        "created_at": NOW,
        "health": {"sandbox": {"enforcement": HARD, "warning": ""}},
    }
    return AgentDoc.model_validate({**values, **changes}).model_dump(mode="json")


class Sick:
    """A server on which nothing is wrong, until a test says what is."""

    def __init__(self) -> None:
        self.health: dict[str, Any] = {"status": "ok", "database": "ok", "version": __version__}
        self.health_status = 200
        self.date = NOW
        self.who: dict[str, Any] = {
            "name": "ada's laptop",
            "role": "operator",
            "scopes": ["read", "admin"],
            "token_id": "abcde01234",
            "token_needed": True,
        }
        self.paused, self.offered, self.trouble = False, True, ""
        self.agents = [agent()]
        self.troubles: list[dict[str, Any]] = []

    async def status(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok", "troubles": self.troubles})

    async def at_health(self, _: web.Request) -> web.StreamResponse:
        headers = {"Date": format_datetime(self.date, usegmt=True)}
        return web.json_response(self.health, status=self.health_status, headers=headers)

    async def whoami(self, _: web.Request) -> web.StreamResponse:
        if not self.who:
            return problem(401, "not_allowed", "no token was sent")
        return web.json_response(self.who)

    async def services(self, _: web.Request) -> web.StreamResponse:
        changes = {"paused": self.paused, "paused_message": "new disk"}
        changes |= {"offered": self.offered, "trouble": self.trouble}
        return web.json_response({"items": [SERVICE | changes]})

    async def list_agents(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"items": self.agents})

    def serving(self):
        return serving(
            ("GET", "/health", self.at_health),
            ("GET", "/api/v1/whoami", self.whoami),
            ("GET", "/api/v1/services", self.services),
            ("GET", "/api/v1/agents", self.list_agents),
            ("GET", "/api/v1/status", self.status),
        )


@pytest.fixture(autouse=True)
def quiet_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferryman.clock.wall_clock", lambda: NOW)


async def test_where_nothing_is_wrong_each_thing_is_fine(ferryman) -> None:
    async with Sick().serving() as url:
        done = await ferryman("doctor", "--token", "t", "--url", url)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * len(lines)
    abouts = [line[9:].partition(":")[0] for line in lines]
    first = ["client", "disk", "server", "version", "clock", "token"]
    assert abouts == [*first, "service example", "agent north"]


def make(**changes: Any) -> Sick:
    sick = Sick()
    for name, value in changes.items():
        setattr(sick, name, value)
    return sick


WHO = Sick().who
SOON = (NOW + timedelta(days=2)).isoformat()
AWAY = "agent north cannot be reached: n:9000: Connection refused"
WAITS = {"kind": "results_waiting", "message": "results wait", "is_serious": True}
WAITS |= {"advice": "make room"}
ASIDE = WAITS | {"kind": "files_moved_aside", "message": "files were moved", "is_serious": False}
ASIDE |= {"advice": "look whether somebody misses them"}
FULL = {"status": "error", "message": "the disk is full"}
SOFT = ["no cgroups", "limits that a job can get around: memory"]
CLOCK = "its clock is 3d ahead of the server's"


@pytest.mark.parametrize(
    ("sick", "code", "text", "hint"),
    [
        (make(health=FULL, health_status=503), 75, "PROBLEM  server: the disk is full", None),
        (
            make(health=FULL, health_status=503, troubles=[WAITS, ASIDE]),
            75,
            "PROBLEM  server: results wait",
            "make room",
        ),
        (make(troubles=[ASIDE]), 0, "warning  files: files were moved", "somebody misses them"),
        (make(who={}), 77, "PROBLEM  token: no token was given", "ferryman token create"),
        (make(date=NOW - timedelta(hours=2)), 0, "server's clock is 1h 59m behind", "timedatectl"),
        (make(date=NOW + timedelta(hours=2)), 0, "server's clock is 2h ahead of", "timedatectl"),
        (make(date=NOW - timedelta(seconds=6)), 0, "ok       clock: ", None),
        (make(health=Sick().health | {"version": "9.1.0"}), 0, "has version 9.1.0", "pip install"),
        (make(health=Sick().health | {"agent": "vm"}), 76, "is an agent: commands are", "--url"),
        (make(health={"status": "ok", "agent": None}), 76, "is an agent: commands are", "--url"),
        (make(who=WHO | {"expires_at": SOON}), 0, "expires in 2d", "token rotate abcde01234"),
        (make(who=WHO | {"token_needed": False}), 0, "the server asks for none", None),
        (make(paused=True), 0, "it is paused: new disk", "ferryman services resume example"),
        (make(offered=False), 0, "no agent offers it", "ferryman agents"),
        (make(trouble=AWAY), 1, f"no agent takes its jobs now: {AWAY}", "ferryman agents"),
        (
            make(agents=[agent(trouble=AWAY, reachable=False)]),
            1,
            "PROBLEM  agent north: it cannot be reached: n:9000",
            "agents show north",
        ),
        (
            make(agents=[agent(state="lost", trouble=AWAY, reachable=False)]),
            0,
            "agent north: it is lost",
            "start the agent on its host",
        ),
        (
            make(agents=[agent(state="retired", trouble="agent north is retired")]),
            0,
            "ok       agent north: it is retired",
            None,
        ),
        (make(agents=[]), 1, "the server has no agents", "[agents.NAME]"),
        (make(agents=[agent(trouble="it is silent")]), 1, "it is silent", "agents show north"),
        (make(agents=[agent(state="draining")]), 0, "it is draining", "agents resume north"),
        (make(agents=[agent(warnings=SOFT)]), 0, "can get around: memory", "ferryman agent check"),
        (make(agents=[agent(warnings=[CLOCK])]), 0, f"agent north: {CLOCK}", "timedatectl"),
    ],
)
async def test_what_is_wrong_is_found(ferryman, sick, code, text, hint) -> None:
    async with sick.serving() as url:
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


async def test_a_user_is_not_asked_about_agents(ferryman) -> None:
    sick = make(who=WHO | {"role": "user", "user_id": "ada"}, agents=[])
    async with sick.serving() as url:
        done = await ferryman("doctor", "--url", url)
    assert (done.code, "agent north" in done.out) == (0, False)


async def test_a_server_that_cannot_be_reached_is_69(ferryman) -> None:
    done = await ferryman("doctor", "--url", "http://127.0.0.1:1")
    assert done.code == 69
    assert "PROBLEM  server: cannot reach http://127.0.0.1:1" in done.out


async def test_a_disk_that_is_nearly_full_is_said(ferryman, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 5 << 20}))
    async with Sick().serving() as url:
        done = await ferryman("doctor", "--url", url)
    assert "warning  disk: 5.0 MiB are free here, for results" in done.out.splitlines()


async def test_where_the_package_is_installed_the_package_is_advised(
    ferryman, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr("ferryman.cli.doctor.PACKAGED", tmp_path / "ferryman.list")
    monkeypatch.setattr("sys.prefix", "/opt/ferryman")
    (tmp_path / "ferryman.list").write_text("/opt/ferryman\n")
    sick = Sick()
    sick.health = sick.health | {"version": "9.1.0"}
    async with sick.serving() as url:
        done = await ferryman("doctor", "--url", url)
    assert "apt-get install ./ferryman_9.1.0_*.deb" in done.out
    assert "pip install" not in done.out


async def test_on_the_host_of_an_agent_its_sandbox_is_tested_and_no_server_is_missed(
    ferryman, monkeypatch, tmp_path
) -> None:
    (tmp_path / "agent.toml").write_text("[agent]\n")
    monkeypatch.setattr("ferryman.cli.doctor.INSTALLED", tmp_path)
    monkeypatch.setattr("ferryman.cli.doctor.DEFAULT_URL", "http://127.0.0.1:1")
    rows = [{"limit": "memory", "enforcement": "hard", "passed": False, "seen": "it got more"}]
    table = {"report": {"backend": "bubblewrap", "version": "1"}, "rows": rows, "advice": []}
    asked: list[tuple[str, ...]] = []

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 1, json.dumps(table), "")

    monkeypatch.setattr("ferryman.cli.doctor._run", run)
    done = await ferryman("doctor", "--url", "http://127.0.0.1:1")
    assert asked == [("client_agent", "check", "--json")]
    assert done.out.splitlines()[2].startswith("warning  server: cannot reach http://127.0.0.1:1")
    assert "PROBLEM  limit memory: it does not hold: it got more" in done.out.splitlines()
    assert done.code == 1
