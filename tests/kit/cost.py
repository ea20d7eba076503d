"""What work costs: steps and memory, which are the same on a busy machine."""

import sys
import tracemalloc
from collections.abc import Callable
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
