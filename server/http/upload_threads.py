"""The threads in which uploads are written and archives expanded.

No upload waits for an archive of another user to be expanded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from shared.multipart.batches import Threads

RECEIVING_THREADS: Final = 8
EXPANSIONS: Final = 2
"""Archives that are expanded at once; of one user, one."""


@dataclass(slots=True)
class _UserLock:
    """The lock of one user's expansions, and how many hold it or wait for it."""

    lock: asyncio.Lock
    waiting: int = 0


class UploadThreads:
    """Threads that write the bytes of uploads, and threads that expand archives."""

    def __init__(self) -> None:
        self._receiving = ThreadPoolExecutor(RECEIVING_THREADS, "upload")
        self._expanding = ThreadPoolExecutor(EXPANSIONS, "expand")
        self._room = asyncio.Semaphore(EXPANSIONS)
        self._parsing = asyncio.Lock()
        self._user_locks: dict[str, _UserLock] = {}

    def for_upload(self, user: str) -> Threads:
        """The threads of one upload.

        Args:
            user: as far as it is known; the form may name it.
        """

        def expanding(fields: dict[str, str]) -> AbstractAsyncContextManager[Executor]:
            return self._expansion(fields.get("user_id", user))

        return Threads(self._receiving, expanding, self._parsing)

    def close(self) -> None:
        """Wait for the work in flight."""
        self._receiving.shutdown()
        self._expanding.shutdown()

    @asynccontextmanager
    async def _expansion(self, user: str) -> AsyncIterator[Executor]:
        user_lock = self._user_locks.setdefault(user, _UserLock(asyncio.Lock()))
        user_lock.waiting += 1
        try:
            # The user's own lock first: an upload that waits for it takes no room from other users.
            async with user_lock.lock, self._room:
                yield self._expanding
        finally:
            user_lock.waiting -= 1
            if not user_lock.waiting:
                del self._user_locks[user]
