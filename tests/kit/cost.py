"""What work costs: steps and memory, which are the same on a busy machine, and how long an event
loop was busy with one thing, in CPU time of its thread.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def steps(work: Callable[[], object], *, lines: bool = False) -> int:
    """Calls of functions, Python's and C's, that ``work`` makes; and lines that it runs."""
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += 1

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        nonlocal count
        count += 1
        return trace

    before = sys.getprofile(), sys.gettrace()
    sys.setprofile(profile)
    if lines:
        sys.settrace(trace)
    try:
        work()
    finally:
        sys.setprofile(before[0])
        sys.settrace(before[1])
    return count


def peak(work: Callable[[], T]) -> tuple[T, int]:
    """What it gives, and the most bytes that Python held meanwhile, beyond those before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = work()
        return found, tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


class Longest:
    """Attributes:
    seconds: CPU time of the longest step so far.
    step: what it was.
    """

    seconds = 0.0
    step = ""


@contextmanager
def longest_step() -> Iterator[Longest]:
    """Measures every callback of event loops while the context is open.

    Meanwhile no garbage is collected: that of other tests would count.
    """
    found, run = Longest(), asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> Any:
        began = thread_time()
        try:
            return run(handle)
        finally:
            spent = thread_time() - began
            if spent > found.seconds:
                found.seconds, found.step = spent, repr(handle)

    gc.disable()
    asyncio.Handle._run = measured  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.enable()
