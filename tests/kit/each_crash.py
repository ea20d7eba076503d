"""A story of the server, told again and again: each time it crashes one step later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.kit.inline_database import CrashPoint, SimulatedCrash
from tests.kit.simulation import World


async def each_crash(
    folder: Path,
    world_of: Callable[[Path, CrashPoint], World],
    story: Callable[[World], Awaitable[None]],
    check: Callable[[World, int | None], Awaitable[None]],
    *,
    first: int = 1,
    every: int = 1,
) -> int:
    """Crash at each step of the story, start the server again, and check what it left.

    Args:
        world_of: a world in a folder, that crashes at the point.
        check: gets the world once its server has started again, and the step at which it crashed;
            None: it did not.
        first: number of the first step to crash at.
        every: of so many steps one; the runs that begin at 1, 2 … ``every`` are all of them.

    Returns:
        The number of the last step that was tried: the story has about so many.
    """
    at, crashed = first - every, True
    while crashed:
        at += every
        place = folder / str(at)
        place.mkdir()
        world = world_of(place, CrashPoint(at))
        with world.inline():
            try:
                await story(world)
                await world.settle()
                crashed = False
            except SimulatedCrash:
                pass
            if hasattr(world, "holder"):
                await world.die()
        with world.inline():
            await world.start()
            await check(world, at if crashed else None)
            world.database.close()
    return at
