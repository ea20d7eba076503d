"""Each key of ``[server]`` either takes effect at a reload, or is said to wait for a restart."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, cast

import pytest
import pytest_asyncio
from multidict import CIMultiDict

from server.app import compose
from server.composed import Server
from server.domain.jobs import Bundle, NewJob
from server.domain.placement import Candidate
from server.settings import load
from server.settings.reloading import RESTART
from server.settings.tables import ServerSettings, ServerTable
from server.settings.users import UserTable
from shared.http.connections import ConnectionLimits, connection_limits
from shared.units.rates import parse_rate
from shared.wire import Limits

TOKEN: Final = "a-long-random-text"
OTHER: Final = "another-long-random-text"
ORIGIN: Final = "https://portal.example.org"
IN_PROCESS: Final = frozenset(
    {
        "head_timeout",
        "keepalive_timeout",
        "send_timeout",
        "shutdown_grace",
        "log_format",
        "log_level",
    }
)
"""Of listener and log: see test_reload_agent.py and tests/process/test_reload_process.py."""


def loop(server: Server, name: str) -> float:
    return next(one._every_s() for one in server.supervisor._loops if one.name == name)


def allowance(name: str) -> Callable[[Server], Any]:
    return lambda server: getattr(server.context.allowances.of("ann"), name)


OBSERVED: Final[dict[str, tuple[str, Callable[[Server], Any], Any]]] = {
    "tokens": (f'["{OTHER}"]', lambda s: s.context.token_holder(OTHER, "x").authenticated, True),
    "allowed_hosts": ('["jobs.org"]', lambda s: s.gate._hosts.known("jobs.org"), True),
    "allowed_origins": (
        f'["{ORIGIN}"]',
        lambda s: s.gate._origins.allowed(CIMultiDict({"Origin": ORIGIN})),
        ORIGIN,
    ),
    "trusted_proxies": ('["10.0.0.1"]', lambda s: len(s.gate._proxies._networks), 1),
    "max_connections": ("40", lambda s: s.gate._limits.connections, 40),
    "connections_per_peer": ("7", lambda s: s.gate._limits.per_peer, 7),
    "public_url": (f'"{ORIGIN}"', lambda s: s.context.public_url, ORIGIN),
    "return_to": (f'["{ORIGIN}"]', lambda s: s.context.return_origins, {ORIGIN}),
    "session_expires_after": ('"1h"', lambda s: s.context.sessions.lifetime_s, 3_600),
    "max_upload": ("99", lambda s: s.context.form_limits.max_bytes, 99),
    "max_files": ("9", lambda s: s.context.form_limits.max_files, 9),
    "names": ('"portable"', lambda s: s.context.form_limits.portable, True),
    "audit_expires_after": ('"1h"', lambda s: s.context.audit._expires_after_s(), 3_600),
    "min_free": ('"1MB"', lambda s: cast("Any", s.context.scratch)._space._min_free(), 1_000_000),
    "stored_per_user": ("77", allowance("stored"), 77),
    "upload_per_user_per_day": ("77", allowance("uploaded"), 77),
    "rate_limit": ('"9/s"', lambda s: s.context.allowances.of("ann").rate.per_s, 9),
    "schedules_per_user": ("3", allowance("schedules"), 3),
    "uploads_per_user": ("3", allowance("uploads"), 3),
    "uploads": ("3", lambda s: s.context.upload_limits.at_once, 3),
    "min_upload_rate": ("3", lambda s: s.context.upload_limits._least_rate(), 3),
    "upload_patience": ('"3s"', lambda s: s.context.upload_limits._patience_s(), 3),
    "sender_interval": ('"3s"', lambda s: loop(s, "sender"), 3),
    "getter_interval": ('"3s"', lambda s: loop(s, "getter"), 3),
    "cleaner_interval": ('"3s"', lambda s: loop(s, "cleaner"), 3),
    "agent_timeout": ('"3s"', lambda s: s.context.cancel._unreachable_after_s(), 3),
    "agent_lost_after": ('"3s"', lambda s: s.context.cancel._lost_after_s(), 3),
    "cancel_patience": ('"3s"', lambda s: s.context.cancel_patience_s, 3),
    "webhook_allow": (
        '["h:1"]',
        lambda s: cast("Any", s.context.webhooks._client)._allowed()._hosts,
        {("h", 1)},
    ),
    "webhooks_expire_after": ('"1h"', lambda s: s.context.webhooks._expires_after_s(), 3_600),
}
"""Key -> what it is changed to, where that is seen, and as what."""
FILES: Final = {
    "tokens_file": (OTHER, OBSERVED["tokens"][1], True),
    "metrics_tokens_file": (OTHER, OBSERVED["tokens"][1], True),
    "webhook_secret_file": (
        "whsec_" + "YQ" * 16,
        lambda s: [len(one) for one in s.context.webhooks._secrets().server],
        [24],
    ),
}
"""The same, for the content of a file."""


def limits(settings: ServerSettings) -> ConnectionLimits:
    table = settings.server
    return connection_limits(1024, most=table.max_connections, per_peer=table.connections_per_peer)


async def composed(file: Path, stack: AsyncExitStack) -> Server:
    def read() -> ServerSettings:
        return load.read(file, {}, {})

    return await compose(read(), stack, limits=limits, read=read)


def test_every_key_has_decided() -> None:
    keys = set(ServerTable.model_fields)
    applied = {*OBSERVED, *FILES, *IN_PROCESS}
    assert RESTART.keys() | applied == keys
    assert not RESTART.keys() & applied


BEFORE: Final = f'[server]\ntokens = ["{TOKEN}"]\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(module_folder: Path) -> AsyncIterator[Server]:
    """A server that each test finds as it was at its start."""
    file = module_folder / "server.toml"
    file.write_text(BEFORE)
    with contextlib.chdir(module_folder):
        async with AsyncExitStack() as stack:
            server = await composed(file, stack)
            yield server


@pytest_asyncio.fixture(loop_scope="module")
async def settings_file(running: Server, module_folder: Path) -> AsyncIterator[Path]:
    file = module_folder / "server.toml"
    yield file
    file.write_text(BEFORE)
    await running.reload.run_once()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("key", OBSERVED)
async def test_it_takes_effect_at_a_reload(running: Server, settings_file: Path, key: str) -> None:
    value, observe, expected = OBSERVED[key]
    assert observe(running) != expected
    kept = "[server]\n" if key == "tokens" else BEFORE
    settings_file.write_text(f"{kept}{key} = {value}\n")
    done = await running.reload.run_once()
    assert [one.key for one in done.changed] == [f"server.{key}"]
    assert done.waiting == []
    assert observe(running) == expected


@pytest.mark.parametrize("key", FILES)
async def test_the_content_of_a_file_takes_effect_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file, secret = tmp_path / "server.toml", tmp_path / "secret"
    content, observe, expected = FILES[key]
    file.write_text(f'[server]\n{key} = "{secret}"\n')
    secret.write_text(TOKEN if key.endswith("tokens_file") else "whsec_" + "YQ" * 20)
    async with AsyncExitStack() as stack:
        server = await composed(file, stack)
        assert observe(server) != expected
        secret.write_text(content)
        (change,) = (await server.reload.run_once()).changed
        assert (change.key, change.new) == (
            f"server.{key}",
            f"{secret} (its content has changed)",
        )
        assert observe(server) == expected


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("key", [key for key in RESTART if not key.startswith("tls_")])
async def test_what_waits_for_a_restart_is_said_each_time(
    running: Server, settings_file: Path, key: str
) -> None:
    value = {"port": "1", "auth": '"token"'}.get(key, '"/x"')
    value = '"::1"' if key == "host" else value
    settings_file.write_text(f"{BEFORE}{key} = {value}\n")
    for _ in range(2):
        done = await running.reload.run_once()
        assert ([one.key for one in done.waiting], done.changed) == ([f"server.{key}"], [])
    assert getattr(running.live.current.server, key) != getattr(
        load.read(settings_file, {}, {}).server, key
    )


def quota(name: str) -> Callable[[Server, str], Any]:
    return lambda server, user: getattr(server.context.services["s"], name).get(user)


def of_user(name: str) -> Callable[[Server, str], Any]:
    return lambda server, user: getattr(server.context.allowances.of(user), name)


OF_USER: Final[dict[str, tuple[str, Callable[[Server, str], Any], Any]]] = {
    "rate_limit": ('"9/s"', of_user("rate"), parse_rate("9/s")),
    "upload_per_user_per_day": ("77", of_user("uploaded"), 77),
    "stored_per_user": ("77", of_user("stored"), 77),
    "uploads_per_user": ("3", of_user("uploads"), 3),
    "schedules_per_user": ("3", of_user("schedules"), 3),
    "runs_per_user": ("3", quota("runs_by_user"), 3),
    "queued_per_user": ("3", quota("queued_by_user"), 3),
    "services": ("{s = {runs_per_user = 3}}", quota("runs_by_user"), 3),
}
"""The same, for the tables of users and groups."""


def test_every_key_of_a_user_takes_effect() -> None:
    assert OF_USER.keys() == UserTable.model_fields.keys()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("key", OF_USER)
async def test_it_takes_effect_in_whatever_order_the_parts_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, reverse: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "server.toml"
    value, observe, expected = OF_USER[key]
    before = "[services.s]\n"
    file.write_text(before)
    async with AsyncExitStack() as stack:
        server = await composed(file, stack)
        if reverse:
            server.live._followers.reverse()
        own = f"[users.ann]\n{key} = {value}\n"
        of_group = f'[groups.lab]\nmembers = ["bob"]\n{key} = {value}\n'
        file.write_text(f"{before}{own}{of_group}")
        await server.reload.run_once()
        assert [observe(server, user) for user in ("ann", "bob")] == [expected] * 2


async def test_a_users_new_limit_holds_for_the_next_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "server.toml"
    text = "[services.s]\n[users.ann]\nruns_per_user = {}\n"
    file.write_text(text.format(4))
    async with AsyncExitStack() as stack:
        server = await composed(file, stack)
        context = server.context
        for _ in range(3):
            new = NewJob("ann", "s", Bundle("b", 1, "digest"), Limits(), 60.0, created_at=10)
            await context.jobs.insert(new, "queued")
        file.write_text(text.format(1))
        await server.reload.run_once()
        candidates = [Candidate("node", 4)]
        claimed = await context.jobs.claim_fairly(context.services["s"], candidates, 10, 20)
        assert len(claimed) == 1
