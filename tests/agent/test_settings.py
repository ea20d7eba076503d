"""Settings of an agent: where they come from, what a mistake says, its command line, a reload."""

import errno
import re
from collections.abc import AsyncIterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest
import typer
from aiohttp import web
from pydantic import ValidationError
from structlog.testing import capture_logs

from client_agent import __main__, app
from client_agent.__main__ import check_last
from client_agent.app import Reload, sandbox_settings
from client_agent.sandbox.base import Grant, Grants
from client_agent.settings.agent import AgentSection, load
from client_agent.settings.grants import SandboxingSection
from shared.clock import RealClock
from shared.settings.base import SettingsError
from tests.kit.agent_http import calling
from tests.kit.certificates import authority
from tests.kit.each import each
from tests.kit.fake_sandbox import REPORT, FakeSandbox

A, B, C = "a" * 20, "b" * 20, "c" * 20


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """Loads settings from exactly this environment, file and flags."""
    for name in ("PORT", "DB_PATH", "DATA_PATH", "MAX_AGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def load_from(
        env: dict[str, str] | None = None, toml: str | None = None, **flags: object
    ) -> AgentSection:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        file = None
        if toml is not None:
            file = tmp_path / "ferryman.toml"
            file.write_text(toml)
        return load(file, flags)

    return load_from


def test_with_nothing_given_it_is_a_local_agent(loaded, tmp_path):
    settings = loaded()
    assert (settings.host, settings.port, settings.sandbox) == ("127.0.0.1", 9000, "bubblewrap")
    assert settings.data_dir == tmp_path / "data" / "ferryman" / "agent"
    assert settings.slots >= 1
    assert (settings.services, settings.all_tokens()) == (None, [])
    assert settings.name
    other = "[server]\nx = 1\n[services.a]\ny = 2\n[agents.b]\nz = 3\n"
    assert loaded(toml=other).port == 9000, "tables of the server are ignored"


def test_flags_override_variables_and_those_override_the_file(loaded, tmp_path):
    toml = "[agent]\nport = 1\nslots = 1\nname = 'file'\nretention = '1h'\n"
    old = {"PORT": "9001", "DATA_PATH": str(tmp_path / "d"), "DB_PATH": "x.db", "MAX_AGE": "60"}
    settings = loaded(old, toml)  # variables of job-orchestrator
    assert (settings.port, settings.retention) == (9001, 60)
    assert settings.data_dir == tmp_path / "d"
    assert settings.database == Path("x.db").absolute()
    env = {"FERRYMAN_AGENT__PORT": "2", "FERRYMAN_AGENT__SLOTS": "2"}
    settings = loaded(env, toml)
    assert (settings.port, settings.slots, settings.name) == (2, 2, "file")
    assert loaded(env, toml, port=3).port == 3


@pytest.mark.parametrize(
    "key", ["data_dir", "database", "identity_secret", "tokens", "config", "tls_cert"]
)
def test_data_of_the_agent_cannot_be_where_jobs_can_read(loaded, tmp_path, key):
    """An unprivileged agent's jobs have its uid, so no mode keeps them out."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for file in (shared / "own", tmp_path / "last"):
        file.write_text(file.name * 16)
    if key == "tls_cert":  # the key is in the same file
        (shared / "own").write_bytes(
            b"".join(path.read_bytes() for path in astuple(authority(tmp_path)))
        )
    (tmp_path / "link").symlink_to(shared)
    own = f"'{tmp_path}/link/own'"
    value = {
        "identity_secret": f"{{ file = {own} }}",
        "tokens": f"[{{ file = {own} }}, {{ file = '{tmp_path}/last' }}]",
    }.get(key, own)
    shown = tmp_path if key == "config" else shared
    given = "data_dir = '/var/lib/x'\n" if key == "config" else f"{key} = {value}\n"
    match = f"would show jobs the agent's own data, {key.replace('cert', 'key')} "
    for whose in ("", ".services.a"):
        granted = f"[agent.sandboxing{whose}]\nread_only = ['{shown}:/data']\n"
        with pytest.raises(SettingsError, match=match):
            loaded(toml=f"[agent]\n{given}{granted}")
    for place in ("/usr", "/lib") if key in ("data_dir", "database") else ():
        with pytest.raises(SettingsError, match=match):
            loaded(toml=f"[agent]\n{key} = '{place}/own'\n")
    none = {"sandbox": "none", "data_dir": "/usr/local/ferryman"}  # then it is anywhere
    assert AgentSection.model_validate(none).data_dir == Path("/usr/local/ferryman")
    with pytest.raises(ValidationError, match="/opt cannot be at /o without a sandbox"):
        AgentSection.model_validate(none | {"sandboxing": {"read_only": ["/opt:/o"]}})


def test_lists_tokens_durations_and_sizes_are_written_as_people_write_them(loaded, tmp_path):
    (tmp_path / "tokens").write_text(f"{A}\n\n{B}\n")
    settings = loaded(toml=f"[agent]\ntokens = ['{C}', {{ file = '{tmp_path}/tokens' }}]\n")
    assert settings.all_tokens() == [C, A, B]
    assert C not in repr(settings)
    env = {"FERRYMAN_AGENT__SERVICES": "docking, example", "FERRYMAN_AGENT__TOKENS": f"{A},{B}"}
    settings = loaded(env)
    assert settings.services == ("docking", "example")
    assert settings.all_tokens() == [A, B]
    assert loaded(services="one").services == ("one",)
    assert loaded({"FERRYMAN_AGENT__SERVICES": '["x", "y"]'}).services == ("x", "y")
    settings = loaded(
        toml="[agent]\nretention = '3d'\ngrace = '1m30s'\nmin_free = '2GiB'\n"
        "sandboxing = { scratch = '1GiB' }\n"
    )
    assert (settings.retention, settings.grace, settings.min_free) == (259_200, 90, 2 << 30)
    sandboxing = settings.sandboxing.settings(settings.min_free)
    assert (sandboxing.scratch, sandboxing.free_floor) == (1 << 30, 2 << 30)
    for slots, images in ((1, 4), (4, 4), (12, 12)):  # a disk is ready for each slot
        given = sandbox_settings(loaded(slots=slots), 2, None)
        assert (given.spare_images, given.own_uids) == (images, range(0))  # 0 to 3 are the host's


@each(
    "toml, message",
    [
        ("[agent]\nslots = 0\n", "agent.slots"),
        ("[agent]\nservices = []\n", "leave it out to offer any service"),
        ("[agent]\nname = 'two words'\n", "agent.name"),
        ("[agent]\ngrace = 'soon'\n", "'soon' is not a duration"),
        ("[agent]\nsandboxing = { scratc = '1MB' }\n", "did you mean scratch?"),
        ("[agent]\ntokens = { file = '/does/not/exist' }\n", "/does/not/exist"),
        ("[agnt]\n", "did you mean agent?"),
    ],
)
def test_a_mistake_is_reported_with_the_key_and_what_would_be_right(loaded, toml, message):
    with pytest.raises(SettingsError) as refusal:
        loaded(toml=toml)
    assert message in str(refusal.value)


# -- grants


def granted(**sandboxing: object) -> Grants:
    return SandboxingSection.model_validate(sandboxing).grants()


def test_a_services_own_keys_replace_those_of_all_and_variables_add_up():
    nothing = granted()
    assert (nothing.for_service("any"), nothing.doc(), nothing.networked) == (Grant(), {}, [])
    grants = granted(
        read_only=["/opt/common"],
        env={"A": "1", "B": "1"},
        allow=["numa"],
        network=True,
        services={
            "gromacs": {
                "read_only": ["/data/refs:/opt/gromacs/refs", "/opt/gromacs"],
                "env": {"B": "2", "LICENSE": "27000@host"},
                "network": False,
                "scratch": "1GiB",
            }
        },
    )
    other, own = grants.for_service("other"), grants.for_service("gromacs")
    assert other.read_only == ((Path("/opt/common"), "/opt/common"),)
    assert (other.network, set(other.allow), other.scratch) == (True, {"numa"}, None)
    parent, child = own.read_only  # in the order in which they are mounted
    assert parent == (Path("/opt/gromacs"), "/opt/gromacs")
    assert child == (Path("/data/refs"), "/opt/gromacs/refs")
    assert own.env == {"A": "1", "B": "2", "LICENSE": "27000@host"}
    assert (own.network, set(own.allow), own.scratch) == (False, {"numa"}, 1 << 30)
    assert grants.networked == ["*"]
    assert grants.doc()["gromacs"]["env"] == ["A", "B", "LICENSE"], "names, and no values"


@each(
    "given, message",
    [
        ({"read_only": ["opt"]}, "'opt' is not an absolute path below /"),
        ({"read_only": ["/"]}, "not an absolute path below /"),
        ({"read_only": ["/opt/../etc"]}, "not an absolute path below /"),
        ({"read_only": ["/opt:/job/opt"]}, "/job is the sandbox's own"),
        ({"read_only": ["/opt:/proc"]}, "/proc is the sandbox's own"),
        ({"read_only": ["/opt:tools"]}, "give an absolute path"),
        ({"read_only": ["/opt", "/srv:/opt/"]}, "/opt is mounted on twice"),
        ({"env": {"A-B": "1"}}, "'A-B' cannot be the name"),
        ({"env": {"FERRYMAN_JOB_ID": "1"}}, "FERRYMAN_JOB_ID is reserved"),
        ({"env": {"A": "a\0b"}}, "A has a NUL in its value"),
        ({"allow": ["everything"]}, "there is no everything; there are inotify, io_uring, numa"),
        ({"scratch": 0}, "greater than 0"),
    ],
)
def test_a_mistake_in_a_grant_is_reported(given, message):
    for section in (given, {"services": {"a": given}}):
        with pytest.raises(ValidationError) as refused:
            SandboxingSection.model_validate(section)
        assert message in str(refused.value)


@each(
    "given, parsed",
    [
        ("", ""),
        ("--port 0", "--port 0"),
        ("check", "check"),
        ("check --config x", "--config x check"),
        ("check --json --config x", "--config x check --json"),
        ("--config x check --json", "--config x check --json"),
        ("check --help", "check --help"),
        ("--name check", "--name check"),
    ],
)
def test_options_of_the_agent_may_follow_check(given, parsed):
    assert check_last(given.split()) == parsed.split()


NO, FULL, MANY = "Permission denied", "No space left on device", "Too many open files"


@each(
    "problem, code, message",
    [
        (OSError(errno.EACCES, NO, "/data/agent/results"), 73, "/data/agent: P"),
        (OSError(errno.ENOSPC, FULL), 73, "/data/agent: No space"),
        (OSError(errno.EMFILE, MANY), 71, MANY),
        (OSError(errno.EACCES, NO, "/dev/loop-control"), 71, "/dev/loop-control"),
    ],
)
def test_only_problems_of_its_folders_exit_as_such(monkeypatch, capsys, problem, code, message):
    monkeypatch.setattr(app, "serve", mock.AsyncMock(side_effect=problem))
    with pytest.raises(typer.Exit) as caught:
        __main__._run(AgentSection(data_dir=Path("/data/agent")), None, AgentSection)
    assert caught.value.exit_code == code
    assert message in capsys.readouterr().err


async def test_soft_limits_and_services_with_the_network_are_logged_at_the_start(
    tmp_path, monkeypatch
):
    report = replace(REPORT, enforcement={"disk": "soft", "pids": "hard"}, advice=("run as root",))

    async def self_test(_):
        return report

    monkeypatch.setattr(FakeSandbox, "self_test", self_test)
    with capture_logs() as logs:
        async with calling(tmp_path, sandboxing={"services": {"fetch": {"network": True}}}):
            pass
    (line,) = [one for one in logs if one["event"] == "sandbox.soft_limits"]
    assert (line["limits"], line["advice"]) == (["disk"], ["run as root"])
    (line,) = [one for one in logs if one["event"] == "sandbox.network"]
    assert (line["log_level"], [*line["services"]]) == ("warning", ["fetch"])


# -- a reload


OLD, NEW = "a-long-random-text", "another-long-random-text"
OPEN = {"/", "/health", "/livez", "/readyz"}


SCRAPER, ANOTHER = "a-token-for-metrics", "another-token-for-metrics"


class World:
    """An agent, and its settings as they would be read."""

    def __init__(self, agent: app.Running, folder: Path) -> None:
        self.agent, self.folder = agent, folder
        self.write(OLD)
        self.reload = Reload(self.settings, lambda: self.settings, agent.use)

    def write(self, *tokens: str, metrics: str = "") -> None:
        """Its settings; with a file of tokens for metrics if there is one to be in it."""
        given: dict[str, Any] = {"port": 0, "data_dir": self.folder, "tokens": list(tokens)}
        if metrics:
            file = self.folder / "metrics-tokens"
            file.write_text(f"{metrics}\n")
            given["metrics_tokens"] = {"file": file}
        self.settings = AgentSection.model_validate(given)

    async def answers(self, token: str, path: str = "/payloads", method: str = "GET") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.agent.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers) as answer,
        ):
            return answer.status


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = RealClock()
    given = AgentSection.model_validate({"port": 0, "data_dir": tmp_path, "tokens": [OLD]})
    async with app.running(given, clock, FakeSandbox(clock, tmp_path)) as agent:
        yield World(agent, tmp_path)


async def test_a_token_or_service_that_was_taken_out_is_refused_from_then_on(world: World) -> None:
    for tokens, old, new in (((OLD,), 200, 401), ((OLD, NEW), 200, 200), ((NEW,), 401, 200)):
        world.write(*tokens)
        assert await world.reload.run_once()
        assert (await world.answers(OLD), await world.answers(NEW)) == (old, new)
    world.settings = world.settings.model_copy(update={"services": ("one",)})
    assert await world.reload.run_once()
    url, who = f"http://127.0.0.1:{world.agent.port}/health", {"Authorization": f"Bearer {NEW}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=who) as answer:
        assert (await answer.json())["services"] == ["one"]


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[web.RouteDef]:
    """Every route of the agent that starts next."""
    table: list[web.RouteDef] = []
    add_routes = web.Application.add_routes

    def noting(self: web.Application, routes: list[web.RouteDef]) -> Any:
        table.extend(routes)
        return add_routes(self, routes)

    monkeypatch.setattr(web.Application, "add_routes", noting)
    return table


async def test_a_token_for_metrics_reads_metrics_and_nothing_else(routes, world) -> None:
    world.write(OLD, metrics=SCRAPER)
    assert await world.reload.run_once()
    allowed = set()
    for route in routes:
        path = re.sub(r"{\w+(:[^{}]*)?}", "1", route.path)
        if await world.answers(SCRAPER, path, route.method) != 403:
            allowed.add(route.path)
        if route.path not in OPEN:
            assert await world.answers("a-token-that-is-unknown", path, route.method) == 401
    assert allowed == {"/metrics", *OPEN}
    assert len(routes) > 15
    asked = ((OLD, "GET"), (SCRAPER, "HEAD"), (SCRAPER, "POST"), (ANOTHER, "GET"))
    found = [await world.answers(token, "/metrics", method) for token, method in asked]
    assert found == [200, 200, 403, 401]
    for metrics, status in ((ANOTHER, 200), ("", 401)):  # a changed file is taken up
        world.write(OLD, metrics=metrics)
        assert await world.reload.run_once()
        assert await world.answers(ANOTHER, "/metrics") == status
        assert await world.answers(SCRAPER, "/metrics") == 401
        assert await world.answers(OLD) == 200


def test_a_token_for_metrics_may_not_be_one_that_may_do_everything(tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    file.write_text(f"{SCRAPER}\n{OLD}\n")
    with pytest.raises(ValueError, match="one of them is in tokens, too"):
        AgentSection.model_validate({"tokens": [OLD], "metrics_tokens": {"file": file}})


APPLIED = [
    ("setting.changed", "agent.tokens"),
    ("setting.not_applied", "agent.slots"),
    ("setting.changed", "agent.services"),
    ("settings.reloaded", None),
]
REFUSED = [("settings.not_reloaded", None)]


@each(
    "new, applied",
    [
        ({"slots": 2, "tokens": [NEW], "services": ("a",)}, True),
        ({"slots": 2}, False),  # the last token is not taken out
        ({"host": "0.0.0.0", "tokens": None}, False),
    ],
)
async def test_tokens_and_services_are_applied_and_the_rest_is_said(new, applied) -> None:
    before = AgentSection.model_validate({"slots": 4, "tokens": [OLD]})
    reload = Reload(before, lambda: AgentSection.model_validate(new), lambda _: None)
    with capture_logs() as lines:
        done = await reload.run_once()
    said = [(one["event"], one.get("key")) for one in lines]
    assert (done, said) == (applied, APPLIED if applied else REFUSED)
    used = reload.settings
    assert (used.slots, used.services, used.all_tokens()) == (
        (4, ("a",), [NEW]) if applied else (4, None, [OLD])
    )
