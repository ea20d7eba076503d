"""The tests' own support, where a defect of it would let tests pass."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from shared.sqlite.database import Database
from tests.kit.clock import START, SimClock


async def test_time_passes_by_itself_when_all_wait_for_it() -> None:
    clock, woken = SimClock(), list[tuple[str, float]]()

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.monotonic()))

    with clock.autojump():
        await asyncio.gather(sleeper("a", 10, 100), sleeper("b", 30, 30))
    assert woken == [("a", 10), ("b", 30), ("b", 60), ("a", 110)]
    assert clock.now() == START + 110_000_000


async def test_no_time_passes_while_a_thread_or_a_database_works(tmp_path: Path) -> None:
    clock = SimClock()
    database = await Database.open(tmp_path / "here.sqlite", [("CREATE TABLE t (n INTEGER)",)])
    alarm = asyncio.create_task(clock.sleep(5))
    goes_on = threading.Event()

    asyncio.get_running_loop().call_later(0.02, goes_on.set)  # real time, in which the thread waits
    with clock.autojump():
        await asyncio.to_thread(goes_on.wait)
        for _ in range(20):
            await database.rows("SELECT * FROM t")
        assert clock.monotonic() == 0
        await alarm
    assert clock.monotonic() == 5
    await database.close()


async def test_no_time_passes_while_bytes_are_on_their_way() -> None:
    clock = SimClock()
    alarm = asyncio.create_task(clock.sleep(5))
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    echo_reader, echo_writer = await asyncio.open_connection(sock=far)
    with clock.autojump():
        for _ in range(50):
            writer.write(b"x")
            echo_writer.write(await echo_reader.readexactly(1))
            assert await reader.readexactly(1) == b"x"
        assert clock.monotonic() == 0
        await alarm
    for one in (writer, echo_writer):
        one.close()
        await one.wait_closed()


async def test_what_never_happens_ends_after_a_time_that_the_test_names() -> None:
    clock, never = SimClock(), asyncio.Event()

    async def sweep() -> None:
        while True:
            await clock.sleep(1)

    sweeping = asyncio.create_task(sweep())
    with pytest.raises(AssertionError, match="did not happen in 60 s"), clock.autojump(60):
        await never.wait()
    assert clock.monotonic() == 60
    sweeping.cancel()
