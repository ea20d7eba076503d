"""Whether the folders of the host that are mounted for jobs exist."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from client_agent.sandbox.grants import Grant
from shared.clock import Clock, wait_for

TIMEOUT_S: Final = 2.0
"""A file server that takes longer to answer is taken to be down."""
CACHE_S: Final = 1.0
"""Results are reused for this long: submits come by the hundred, and each check takes a thread."""


class MountSource:
    """A folder of the host that is mounted for jobs.

    A check of a folder on a file server that is down may block for ever. So it runs in a thread of
    its own, and blocks neither the event loop, nor the end of the process, nor other services.

    Attributes:
        exists: as of the last check; False while a check does not return.
        unresponsive: the running check has timed out.
    """

    def __init__(self, path: Path, exists: Callable[[Path], bool]) -> None:
        self.exists = self.unresponsive = False
        self._path, self._check = path, exists
        self._checked: asyncio.Event | None = None
        """Of the running check; there is one at a time, however long it takes."""

    def check(self) -> asyncio.Event:
        """Start a check, unless one is running. The event is set when it has returned."""
        if self._checked is None:
            self._checked = asyncio.Event()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, args=(loop,), daemon=True).start()
        return self._checked

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            exists = self._check(self._path)
        except OSError:  # a stale file handle, or a folder above that may not be read
            exists = False
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._finish, exists)

    def _finish(self, exists: bool) -> None:
        self.exists, self.unresponsive = exists, False
        checked, self._checked = self._checked, None
        if checked is not None:
            checked.set()


class MountSources:
    """The folders of all grants of an agent."""

    def __init__(self, paths: Iterable[Path], exists: Callable[[Path], bool] = Path.exists) -> None:
        self._sources = {path: MountSource(path, exists) for path in paths}
        self._cached_until = float("-inf")

    async def refresh(self, clock: Clock) -> None:
        """Check which folders exist. Takes at most :data:`TIMEOUT_S`, and does not wait for those
        that have timed out before. While all exist, checks once in :data:`CACHE_S`."""
        if clock.monotonic() < self._cached_until:
            return
        checks = [(source, source.check()) for source in self._sources.values()]
        until = clock.monotonic() + TIMEOUT_S
        for source, checked in checks:
            left = until - clock.monotonic()
            if not source.unresponsive and not await wait_for(checked, left, clock):
                source.exists, source.unresponsive = False, True
        if all(source.exists or source.unresponsive for source in self._sources.values()):
            self._cached_until = clock.monotonic() + CACHE_S

    def missing(self, grant: Grant) -> Path | None:
        """A folder of the grant that did not exist at the last :meth:`refresh`."""
        paths = (path for path, _ in grant.read_only)
        return next((path for path in paths if not self._sources[path].exists), None)
