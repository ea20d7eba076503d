"""Waiting for what no event says: another process, a thread, files that go after the end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
MOST_S = 50.0


async def until(
    condition: Callable[[], bool], seconds: float = MOST_S, said: Callable[[], object] = str
) -> None:
    """Ask until it is true; ``said`` tells what there is in its place."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"it did not happen {said()}"
        await asyncio.sleep(0.003)  # noqa: TID251  # there is no event to wait for


async def eventually(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], bool]) -> T:
    """Ask again until the answer is a wanted one; that answer. The last one is told otherwise."""
    deadline = asyncio.get_running_loop().time() + MOST_S
    while not wanted(answer := await ask()):
        assert asyncio.get_running_loop().time() < deadline, f"to the end it was {answer!r}"
    return answer


async def turns(count: int = 1) -> None:
    """Let others go on."""
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251  # no time passes
