"""Folders of the host that jobs are given: asked for without being held up by them."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

from client_agent.intake.mount_sources import FRESH_S, LOOK_S, MountSources
from client_agent.sandbox.grants import Grant
from tests.support.real_sandbox import until
from tests.support.sim_clock import SimClock


async def test_what_is_not_there_now_may_be_there_later(tmp_path):
    tree = tmp_path / "tree"
    grant, clock = Grant(read_only=((tree, "/tree"),)), SimClock()
    found = MountSources([tree])
    await found.look(clock)
    assert found.missing(grant) == tree
    assert found.missing(Grant()) is None
    tree.mkdir()
    await found.look(clock)
    assert found.missing(grant) is None
    await clock.advance(FRESH_S)
    tree.rmdir()
    await found.look(clock)
    assert found.missing(grant) == tree


async def test_a_file_server_that_does_not_answer_holds_up_nothing():
    asked, answer = [], threading.Event()

    def exists(path: Path) -> bool:
        asked.append(str(path))
        return str(path) != "/far" or answer.wait(60)

    paths = [Path("/a-near"), Path("/far"), Path("/near")]
    found = MountSources(paths, exists)
    near_by, far, near = (Grant(read_only=((path, "/x"),)) for path in paths)
    clock = SimClock()
    looking = asyncio.create_task(found.look(clock))
    await until(lambda: "/far" in asked)
    await clock.until_asleep(LOOK_S)
    await clock.advance(LOOK_S)
    await looking
    for grant in (near_by, near):  # whichever was asked for first
        assert found.missing(grant) is None
    assert found.missing(far) == Path("/far")
    await clock.advance(FRESH_S)
    await asyncio.wait_for(found.look(clock), 5)  # nobody waits for it again
    assert asked.count("/far") == 1  # the first look is still under way, and no thread is added
    answer.set()
    await until(lambda: found.missing(far) is None)
    assert found.missing(near) is None
    await clock.advance(FRESH_S)
    await found.look(clock)
    assert asked.count("/far") == 2


async def test_many_orders_at_once_are_one_look():
    asked = []

    def exists(path: Path) -> bool:
        asked.append(path)
        return True

    found = MountSources([Path("/x")], exists)
    clock = SimClock()
    for _ in range(20):
        await found.look(clock)
    assert len(asked) == 1
    await clock.advance(FRESH_S)
    await found.look(clock)
    assert len(asked) == 2


async def test_a_folder_that_cannot_be_asked_for_is_not_there():
    def exists(path: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    found = MountSources([Path("/stale")], exists)
    await found.look(SimClock())
    assert found.missing(Grant(read_only=((Path("/stale"), "/x"),))) == Path("/stale")
