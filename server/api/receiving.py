"""What uploads may use: how many at once, how slowly they may come, and in which threads they work.

An upload uses only its own: archives are expanded in threads that nobody else waits for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import StreamReader

from server.api.problems import Refusal
from shared.clock import Clock
from shared.multipart.batches import Threads
from shared.units.sizes import say_size

RECEIVING_THREADS: Final = 8
EXPANSIONS: Final = 2
"""Archives that are expanded at once; of one user, one."""
_RETRY_S: Final = 1


class Upload:
    """One upload under way.

    Attributes:
        user: whom it counts against; None: not known yet.
    """

    def __init__(self, uploads: Uploads, content: StreamReader) -> None:
        self._uploads, self._content = uploads, content
        self.user: str | None = None
        self._waiting = False
        self._came = 0
        self._since: float | None = None

    def of(self, user: str) -> None:
        """Count it against the user.

        Raises:
            Refusal: too many uploads of the user are under way.
        """
        if self.user is None:
            self._uploads.count(user)
            self.user = user

    async def body(self) -> AsyncIterator[bytes]:
        """The chunks of the body as they come.

        Raises:
            Refusal: 408: they come too slowly.
        """
        chunks = self._content.iter_any()
        while True:
            self._waiting = True
            try:
                chunk = await anext(chunks, None)
            finally:
                self._waiting = False
            if chunk is None:
                return
            self._came += len(chunk)
            yield chunk
            del chunk  # not to be held while the next one is waited for

    def check(self, now: float, least_rate: int, patience_s: float) -> bool:
        """Cut it off if less than ``least_rate`` bytes a second came for ``patience_s``; whether.

        Only time in which we wait for its sender counts.
        """
        if not self._waiting or self._since is None:
            self._since, self._came = now, 0
            return False
        waited = now - self._since
        if waited < patience_s:
            return False
        if self._came >= least_rate * waited:
            self._since, self._came = now, 0
            return False
        self._content.set_exception(
            Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                "upload_too_slow",
                f"the upload was cut off: less than {say_size(least_rate)} a second of it came for "
                f"{patience_s:.0f} seconds",
            )
        )
        return True


class Uploads:
    """All uploads under way; also the sweep that cuts off slow ones.

    Args:
        at_once: in all.
        per_user: of each user.
        least_rate: bytes a second.
        patience_s: for which an upload may be slower.
    """

    def __init__(
        self, clock: Clock, *, at_once: int, per_user: int, least_rate: int, patience_s: float
    ) -> None:
        self._clock, self._at_once, self._per_user = clock, at_once, per_user
        self._least_rate, self._patience_s = least_rate, patience_s
        self._under_way: set[Upload] = set()
        self._of_user: Counter[str] = Counter()

    @contextmanager
    def upload(self, content: StreamReader) -> Iterator[Upload]:
        """Around one upload.

        Raises:
            Refusal: too many are under way.
        """
        if len(self._under_way) >= self._at_once:
            raise _too_many(f"{self._at_once} uploads are under way, the most this server takes")
        upload = Upload(self, content)
        self._under_way.add(upload)
        try:
            yield upload
        finally:
            self._under_way.remove(upload)
            if upload.user is not None:
                self._of_user[upload.user] -= 1
                if not self._of_user[upload.user]:
                    del self._of_user[upload.user]

    def count(self, user: str) -> None:
        """One more of the user.

        Raises:
            Refusal
        """
        if self._of_user[user] >= self._per_user:
            raise _too_many(
                f"user {user} has {self._per_user} uploads under way, "
                "the most this server takes of one user"
            )
        self._of_user[user] += 1

    async def run_once(self) -> int:
        """Cut off those that are too slow; how many."""
        now = self._clock.monotonic()
        return sum(
            upload.check(now, self._least_rate, self._patience_s)
            for upload in list(self._under_way)
        )


def _too_many(message: str) -> Refusal:
    return Refusal(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", message, retry_after_s=_RETRY_S
    )


@dataclass(slots=True)
class _Turn:
    """Of one user: a lock, and who holds it or waits for it."""

    lock: asyncio.Lock
    waiting: int = 0


class UploadThreads:
    """Threads of uploads: some for bytes as they come, some for archives to be expanded."""

    def __init__(self) -> None:
        self._receiving = ThreadPoolExecutor(RECEIVING_THREADS, "upload")
        self._expanding = ThreadPoolExecutor(EXPANSIONS, "expand")
        self._room = asyncio.Semaphore(EXPANSIONS)
        self._parsing = asyncio.Lock()
        self._turns: dict[str, _Turn] = {}

    def of(self, user: str) -> Threads:
        """For one upload, whose form may name its user."""

        def expanding(fields: dict[str, str]) -> AbstractAsyncContextManager[Executor]:
            return self._expansion(fields.get("user_id", user))

        return Threads(self._receiving, expanding, self._parsing)

    def close(self) -> None:
        """Wait for what is under way."""
        self._receiving.shutdown()
        self._expanding.shutdown()

    @asynccontextmanager
    async def _expansion(self, user: str) -> AsyncIterator[Executor]:
        turn = self._turns.setdefault(user, _Turn(asyncio.Lock()))
        turn.waiting += 1
        try:
            # First the user's own turn: whoever waits for it takes no place of others.
            async with turn.lock, self._room:
                yield self._expanding
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[user]
