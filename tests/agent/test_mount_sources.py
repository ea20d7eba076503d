"""Checks of the folders that are mounted for jobs block nothing. That one is looked for each time:
test_payloads.py.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

from client_agent.intake.admission import CACHE_S, TIMEOUT_S, MountSources
from client_agent.sandbox.base import Grant
from tests.kit.clock import SimClock
from tests.kit.waiting import until


async def test_a_file_server_that_does_not_answer_blocks_nothing():
    checked, answer = [], threading.Event()

    def exists(path: Path) -> bool:
        checked.append(str(path))
        return str(path) != "/far" or answer.wait(60)

    paths = [Path("/a-near"), Path("/far"), Path("/near")]
    sources = MountSources(paths, exists)
    near_by, far, near = (Grant(read_only=((path, "/x"),)) for path in paths)
    clock = SimClock()
    refreshing = asyncio.create_task(sources.refresh(clock))
    await until(lambda: "/far" in checked)
    await clock.until_asleep(TIMEOUT_S)
    await clock.advance(TIMEOUT_S)
    await refreshing
    for grant in (near_by, near):  # whichever was checked first
        assert sources.missing(grant) is None
    assert sources.missing(far) == Path("/far")
    await clock.advance(CACHE_S)
    await asyncio.wait_for(sources.refresh(clock), 5)  # it is not waited for again
    assert checked.count("/far") == 1  # the first check still runs, and no thread is added
    answer.set()
    await until(lambda: sources.missing(far) is None)
    assert sources.missing(near) is None
    await clock.advance(CACHE_S)
    await sources.refresh(clock)
    assert checked.count("/far") == 2


async def test_many_submits_at_once_are_one_check_and_one_that_fails_says_missing():
    checked, clock, stale = list[Path](), SimClock(), Path("/stale")

    def exists(path: Path) -> bool:
        checked.append(path)
        if path == stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return True

    sources = MountSources([Path("/x")], exists)
    for count in (1, 2):
        for _ in range(20):
            await sources.refresh(clock)
        assert len(checked) == count
        await clock.advance(CACHE_S)
    sources = MountSources([stale], exists)
    await sources.refresh(clock)
    assert sources.missing(Grant(read_only=((stale, "/x"),))) == stale
