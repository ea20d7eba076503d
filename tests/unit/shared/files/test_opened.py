"""Files that are opened in threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import IO

import pytest

from shared.files.opened import opened


async def test_a_file_that_is_opened_for_somebody_who_has_gone_is_closed(tmp_path: Path) -> None:
    files: list[IO[bytes]] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> IO[bytes]:
        begun.set()
        assert go_on.wait(30)
        files.append((tmp_path / "result").open("wb"))
        return files[0]

    storing = asyncio.create_task(opened(slow).__aenter__())
    await asyncio.to_thread(begun.wait, 30)
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert files[0].closed


def test_it_is_closed_even_if_the_loop_ends_meanwhile(tmp_path: Path) -> None:
    files: list[IO[bytes]] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> IO[bytes]:
        begun.set()
        assert go_on.wait(30)
        files.append((tmp_path / "result").open("wb"))
        return files[0]

    async def main() -> None:
        storing = asyncio.create_task(opened(slow).__aenter__())
        last = asyncio.create_task(until_the_loop_ends())
        await asyncio.to_thread(begun.wait, 30)
        storing.cancel()
        await asyncio.wait([storing])
        assert not last.done()

    async def until_the_loop_ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            go_on.set()

    asyncio.run(main())
    assert files[0].closed
