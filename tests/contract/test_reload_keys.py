"""A reload applies tokens, users, services and agents; each other key waits for a restart."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from server.app import Server, compose
from server.domain.choose import Candidate
from server.domain.jobs import Bundle, NewJob
from server.settings import load
from server.settings.tables import ServerSettings
from server.settings.users import UserTable
from shared.units.rates import parse_rate
from shared.wire import Limits

TOKEN: Final = "a-long-random-text"
OTHER: Final = "another-long-random-text"
BEFORE: Final = f'[server]\ntokens = ["{TOKEN}"]\n'
WAITS: Final = {
    "host": '"::1"',
    "port": "1",
    "auth": '"token"',
    "data_dir": '"/x"',
    "max_files": "9",
    "stored_per_user": "77",
    "sender_interval": '"3s"',
    "log_level": '"error"',
}
"""Some keys of ``[server]`` -> what they are changed to."""


async def composed(file: Path, stack: AsyncExitStack) -> Server:
    def read() -> ServerSettings:
        return load.read(file, {}, {})

    return await compose(read(), stack, read=read)


def known(server: Server, token: str) -> bool:
    return server.context.token_holder(token, "peer").authenticated


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
async def test_tokens_take_effect_at_a_reload(running: Server, settings_file: Path) -> None:
    settings_file.write_text(f'[server]\ntokens = ["{OTHER}"]\n')
    done = await running.reload.run_once()
    assert ([one.key for one in done.changed], done.waiting) == (["server.tokens"], [])
    assert (known(running, TOKEN), known(running, OTHER)) == (False, True)


@pytest.mark.parametrize("key", ["tokens", "metrics_tokens"])
async def test_the_content_of_a_file_takes_effect_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file, secret = tmp_path / "server.toml", tmp_path / "secret"
    file.write_text(f'[server]\n{key} = {{ file = "{secret}" }}\n')
    secret.write_text(TOKEN)
    async with AsyncExitStack() as stack:
        server = await composed(file, stack)
        assert not known(server, OTHER)
        secret.write_text(OTHER)
        (change,) = (await server.reload.run_once()).changed
        assert (change.key, change.new) == (f"server.{key}", "(secret)")
        assert known(server, OTHER)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("key", WAITS)
async def test_what_waits_for_a_restart_is_said_each_time(
    running: Server, settings_file: Path, key: str
) -> None:
    before = getattr(running.reload.settings.server, key)
    settings_file.write_text(f"{BEFORE}{key} = {WAITS[key]}\n")
    for _ in range(2):
        done = await running.reload.run_once()
        assert ([one.key for one in done.waiting], done.changed) == ([f"server.{key}"], [])
    assert getattr(running.reload.settings.server, key) == before


def quota(name: str) -> Callable[[Server, str], Any]:
    return lambda server, user: getattr(server.context.services["s"], name).get(user)


def of_user(name: str) -> Callable[[Server, str], Any]:
    return lambda server, user: getattr(server.context.allowances.of(user), name)


OF_USER: Final[dict[str, tuple[str, Callable[[Server, str], Any], Any]]] = {
    "rate_limit": ('"9/s"', of_user("rate"), parse_rate("9/s")),
    "upload_per_user_per_day": ("77", of_user("uploaded"), 77),
    "stored_per_user": ("77", of_user("stored"), 77),
    "uploads_per_user": ("3", of_user("uploads"), 3),
    "runs_per_user": ("3", quota("runs_by_user"), 3),
    "queued_per_user": ("3", quota("queued_by_user"), 3),
    "services": ("{s = {runs_per_user = 3}}", quota("runs_by_user"), 3),
}
"""Key of a table of users -> what it is changed to, where that is seen, and as what."""


def test_every_key_of_a_user_takes_effect() -> None:
    assert OF_USER.keys() == UserTable.model_fields.keys() - {"members"}


@pytest.mark.parametrize("key", OF_USER)
async def test_a_key_of_a_user_takes_effect_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "server.toml"
    value, observe, expected = OF_USER[key]
    before = "[services.s]\n"
    file.write_text(before)
    async with AsyncExitStack() as stack:
        server = await composed(file, stack)
        file.write_text(f'{before}[users.lab]\nmembers = ["ann", "b*"]\n{key} = {value}\n')
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
