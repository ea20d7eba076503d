"""Whether the folders of the host that jobs are given are there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from client_agent.sandbox.grants import Grant
from shared.clock import Clock, wait_for

LOOK_S: Final = 2.0
"""A file server that takes longer to say whether a folder is there is of no use to a job."""
FRESH_S: Final = 1.0
"""What was there then is taken to be there: orders come by the hundred, and each look costs a
thread."""


class MountSource:
    """A folder of the host that jobs are given.

    Asking for one on a file server that is gone may take for ever, and must hold up neither the
    event loop, nor the end of the process, nor services that do not use it.

    Attributes:
        there: as of the last answer; one that does not answer is not there.
        silent: it has not answered in time, and still does not.
    """

    def __init__(self, path: Path, exists: Callable[[Path], bool]) -> None:
        self.there = self.silent = False
        self._path, self._exists = path, exists
        self._answered: asyncio.Event | None = None
        """Of the question under way; there is one at a time, however long it takes."""

    def ask(self) -> asyncio.Event:
        """Set once it has answered."""
        if self._answered is None:
            self._answered = asyncio.Event()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._look, args=(loop,), daemon=True).start()
        return self._answered

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            there = self._exists(self._path)
        except OSError:  # a stale handle, a closed folder above it
            there = False
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(self._answer, there)

    def _answer(self, there: bool) -> None:
        self.there, self.silent = there, False
        answered, self._answered = self._answered, None
        if answered is not None:
            answered.set()


class MountSources:
    """The folders of all grants of an agent."""

    def __init__(self, paths: Iterable[Path], exists: Callable[[Path], bool] = Path.exists) -> None:
        self._sources = {path: MountSource(path, exists) for path in paths}
        self._fresh_until = float("-inf")

    async def look(self, clock: Clock) -> None:
        """Look which are there; not longer than :data:`LOOK_S`, and no longer at all for one that
        is silent since an earlier look. While nothing is missing, once in :data:`FRESH_S`."""
        if clock.monotonic() < self._fresh_until:
            return
        asked = [(source, source.ask()) for source in self._sources.values()]
        until = clock.monotonic() + LOOK_S
        for source, answered in asked:
            left = until - clock.monotonic()
            if not source.silent and not await wait_for(answered, left, clock):
                source.there, source.silent = False, True
        if all(source.there or source.silent for source in self._sources.values()):
            self._fresh_until = clock.monotonic() + FRESH_S

    def missing(self, grant: Grant) -> Path | None:
        """A folder that the grant promises and that is not there, as of the last :meth:`look`."""
        paths = (path for path, _ in grant.read_only)
        return next((path for path in paths if not self._sources[path].there), None)
