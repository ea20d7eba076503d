"""How many uploads there may be at once, and how slow they may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from aiohttp import StreamReader

from server.http.problems import Refusal
from shared.clock import Clock
from shared.units.sizes import say_count, say_size

AT_ONCE: Final = 256
"""Uploads in all: each may hold some files open and 1 MiB in memory."""
LEAST_RATE: Final = 1024
"""Bytes a second: slower than any line, and fast enough to show that somebody sends."""
PATIENCE_S: Final = 30.0
"""For which an upload may be slower. Time in which our own disk is behind does not count."""
_RETRY_S: Final = 1


class UploadInFlight:
    """One upload.

    Attributes:
        user: whom it counts against; None: not known yet.
    """

    def __init__(self, limits: UploadLimits, content: StreamReader) -> None:
        self._limits, self._content = limits, content
        self.user: str | None = None
        self._waiting = False
        self._came = 0
        self._since: float | None = None

    def count_for(self, user: str) -> None:
        """Count it as one of the user's, once.

        Raises:
            Refusal: the user has too many uploads now.
        """
        if self.user is None:
            self._limits.count(user)
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

    def check(self, now: float) -> bool:
        """Cut it off if less than LEAST_RATE bytes a second came for PATIENCE_S; whether.

        Only time in which we wait for its sender counts.
        """
        if not self._waiting or self._since is None:
            self._since, self._came = now, 0
            return False
        waited = now - self._since
        if waited < PATIENCE_S:
            return False
        if self._came >= LEAST_RATE * waited:
            self._since, self._came = now, 0
            return False
        self._content.set_exception(
            Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                "upload_too_slow",
                f"the upload was cut off: less than {say_size(LEAST_RATE)} a second of it came for "
                f"{PATIENCE_S:.0f} seconds",
            )
        )
        return True


class UploadLimits:
    """Of all uploads in flight; also the sweep that cuts off slow ones.

    Args:
        per_user: how many a user may have.
    """

    def __init__(self, clock: Clock, per_user: Callable[[str], int]) -> None:
        self._clock, self._per_user = clock, per_user
        self._in_flight: set[UploadInFlight] = set()
        self._of_user: Counter[str] = Counter()

    @contextmanager
    def admit(self, content: StreamReader) -> Iterator[UploadInFlight]:
        """A context for the upload of this body.

        Raises:
            Refusal: there are too many uploads now.
        """
        if len(self._in_flight) >= AT_ONCE:
            raise _too_many(f"{AT_ONCE} uploads are under way, the most this server takes")
        upload = UploadInFlight(self, content)
        self._in_flight.add(upload)
        try:
            yield upload
        finally:
            self._in_flight.remove(upload)
            if upload.user is not None:
                self._of_user[upload.user] -= 1
                if not self._of_user[upload.user]:
                    del self._of_user[upload.user]

    def count(self, user: str) -> None:
        """One more of the user.

        Raises:
            Refusal
        """
        most = self._per_user(user)
        if self._of_user[user] >= most:
            raise _too_many(
                f"user {user} has {say_count(most, 'upload')} under way, "
                "the most this server takes of one user"
            )
        self._of_user[user] += 1

    @property
    def under_way(self) -> int:
        """How many uploads there are, of all users."""
        return len(self._in_flight)

    def of_user(self, user: str) -> int:
        """How many uploads of the user are under way."""
        return self._of_user[user]

    async def run_once(self) -> int:
        """Cut off those that are too slow; how many."""
        now = self._clock.monotonic()
        return sum(upload.check(now) for upload in list(self._in_flight))


def _too_many(message: str) -> Refusal:
    return Refusal(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", message, retry_after_s=_RETRY_S
    )
