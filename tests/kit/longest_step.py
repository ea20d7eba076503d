"""How long the event loop was busy with one thing, in CPU time of its thread: that does not grow
when the machine is busy with others.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any


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
