"""The command line, run in this process, and servers that answer it."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, SyncClient, SyncResult
from ferryman.cli import options
from shared.principals import Principal, Role
from tests.client.fake_server import FakeServer
from tests.kit import command_line
from tests.kit.command_line import Said
from tests.kit.warm import Place, module_folder, place, warm

__all__ = ["module_folder", "place", "warm"]

OPERATOR = "the-operators-token"
PRINCIPALS = {OPERATOR: Principal("operator", Role.OPERATOR)}

Ferryman = Callable[..., Awaitable[Said]]


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    """A server that knows no route yet."""
    async with FakeServer().serving() as server:
        yield server


@pytest.fixture
def ferryman(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ferryman:
    """Runs a command in an empty folder, in a thread: the loop here serves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "RETRY_FOR_S", 0.0)

    async def call(*words: object, **how: object) -> Said:
        return await asyncio.to_thread(command_line.run, *words, **how)  # type: ignore[arg-type]

    return call


@pytest.fixture
def run(ferryman: Ferryman, place: Place) -> Ferryman:
    """A command of the test's user, for its service, with an operator's token."""
    names = {"URL": place.url, "USER": place.user, "SERVICE": place.service, "TOKEN": OPERATOR}
    return partial(ferryman, **{f"FERRYMAN_{name}": value for name, value in names.items()})


async def both(url: str, **options: Any) -> AsyncIterator[Any]:
    """One scenario with a :class:`Client`, and then with a :class:`SyncClient` that is driven in
    threads: ``async for client in both(url): await client...``.
    """
    async with Client(url, **options) as client:
        yield client
    with SyncClient(url, **options) as sync:
        yield _Awaited(sync)


class _Awaited:
    """A blocking object whose methods are awaited, and whose generators are asynchronous."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        if "Generator" in str(inspect.signature(found).return_annotation):
            return lambda *args, **options: _iterated(found(*args, **options))
        return partial(_called, found)


async def _called(method: Any, *args: Any, **options: Any) -> Any:
    found = await asyncio.to_thread(method, *args, **options)
    return _Awaited(found) if isinstance(found, SyncResult) else found


async def _iterated(items: Generator[Any, None, None]) -> AsyncIterator[Any]:
    end = object()
    try:
        while (item := await asyncio.to_thread(next, items, end)) is not end:
            yield item
    finally:
        await asyncio.to_thread(items.close)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "run.sh").write_text("echo hi\n")
    return folder
