"""Checks of the folders that are mounted for jobs block nothing."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

from client_agent.intake.admission import CACHE_S, TIMEOUT_S, MountSources
from client_agent.sandbox.base import Grant
from tests.kit.clock import SimClock
from tests.kit.waiting import until


async def test_a_folder_that_is_missing_now_may_exist_later(tmp_path):
    tree = tmp_path / "tree"
    grant, clock = Grant(read_only=((tree, "/tree"),)), SimClock()
    sources = MountSources([tree])
    await sources.refresh(clock)
    assert sources.missing(grant) == tree
    assert sources.missing(Grant()) is None
    tree.mkdir()
    await sources.refresh(clock)
    assert sources.missing(grant) is None
    await clock.advance(CACHE_S)
    tree.rmdir()
    await sources.refresh(clock)
    assert sources.missing(grant) == tree


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


async def test_many_submits_at_once_are_one_check():
    checked = []

    def exists(path: Path) -> bool:
        checked.append(path)
        return True

    sources = MountSources([Path("/x")], exists)
    clock = SimClock()
    for _ in range(20):
        await sources.refresh(clock)
    assert len(checked) == 1
    await clock.advance(CACHE_S)
    await sources.refresh(clock)
    assert len(checked) == 2


async def test_a_folder_whose_check_fails_is_missing():
    def exists(path: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    sources = MountSources([Path("/stale")], exists)
    await sources.refresh(SimClock())
    assert sources.missing(Grant(read_only=((Path("/stale"), "/x"),))) == Path("/stale")
