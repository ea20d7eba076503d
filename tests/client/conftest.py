"""The command line, run in this process, and servers that answer it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ferryman.cli import options
from tests.client.fake_server import FakeServer
from tests.kit import command_line
from tests.kit.command_line import Said
from tests.kit.warm import module_folder, place, warm

__all__ = ["module_folder", "place", "warm"]

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
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "run.sh").write_text("echo hi\n")
    return folder
