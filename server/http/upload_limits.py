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


class UploadLimits:
    """Of all uploads in flight; also the sweep that cuts off slow ones.

    Args:
        at_once: in all.
        per_user: how many a user may have.
        least_rate: bytes a second.
        patience_s: for which an upload may be slower.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        at_once: int,
        per_user: Callable[[str], int],
        least_rate: int,
        patience_s: float,
    ) -> None:
        self._clock, self._at_once, self._per_user = clock, at_once, per_user
        self._least_rate, self._patience_s = least_rate, patience_s
        self._in_flight: set[UploadInFlight] = set()
        self._of_user: Counter[str] = Counter()

    @contextmanager
    def admit(self, content: StreamReader) -> Iterator[UploadInFlight]:
        """A context for the upload of this body.

        Raises:
            Refusal: there are too many uploads now.
        """
        if len(self._in_flight) >= self.at_once:
            raise _too_many(f"{self.at_once} uploads are under way, the most this server takes")
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

    @property
    def at_once(self) -> int:
        """How many there may be."""
        return self._at_once

    def of_user(self, user: str) -> int:
        """How many uploads of the user are under way."""
        return self._of_user[user]

    async def run_once(self) -> int:
        """Cut off those that are too slow; how many."""
        now = self._clock.monotonic()
        least_rate, patience_s = self._least_rate, self._patience_s
        return sum(upload.check(now, least_rate, patience_s) for upload in list(self._in_flight))


def _too_many(message: str) -> Refusal:
    return Refusal(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", message, retry_after_s=_RETRY_S
    )
