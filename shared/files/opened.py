"""Opening files in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


@asynccontextmanager
async def opened(
    open_file: Callable[[], T], gone: Callable[[], object] = lambda: None
) -> AsyncIterator[T]:
    """What ``open_file`` returns in a thread. It is closed at the end, and also if the caller is
    cancelled while the thread still opens it.

    Args:
        gone: called once it is closed for a caller that was cancelled: for who makes a file, and
            has removed it before it was there.
    """
    opening = asyncio.ensure_future(asyncio.to_thread(open_file))
    try:
        file = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(partial(_close, gone=gone))
        raise
    try:
        yield file
    finally:
        file.close()


def _close(opening: asyncio.Future[T], gone: Callable[[], object]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
        gone()
