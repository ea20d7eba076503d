"""What an operator opens of the host for the jobs of a service."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from client_agent.payloads.errors import Refused
from client_agent.sandbox.base import Grant
from shared.clock import Clock, wait_for
from shared.wire import Limits

LOOK_S: Final = 2.0
"""A file server that takes longer to say whether a folder is there is of no use to a job."""


FRESH_S: Final = 1.0
"""What was there then is taken to be there: orders come by the hundred, and each look costs a
thread."""


class Tree:
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


class Grants:
    """The grants of one agent.

    Args:
        common: for services without one of their own.
    """

    def __init__(
        self,
        common: Grant,
        services: Mapping[str, Grant],
        exists: Callable[[Path], bool] = Path.exists,
    ) -> None:
        self._common, self._services = common, services
        every = (common, *services.values())
        paths = sorted({path for grant in every for path, _ in grant.read_only})
        self._trees = {path: Tree(path, exists) for path in paths}
        self._fresh_until = float("-inf")

    def of(self, service: str) -> Grant:
        return self._services.get(service, self._common)

    async def look(self, clock: Clock) -> None:
        """Look which trees are there; not longer than :data:`LOOK_S`, and no longer at all for one
        that is silent since an earlier look. While nothing is missing, once in :data:`FRESH_S`."""
        if clock.monotonic() < self._fresh_until:
            return
        asked = [(tree, tree.ask()) for tree in self._trees.values()]
        until = clock.monotonic() + LOOK_S
        for tree, answered in asked:
            if not tree.silent and not await wait_for(answered, until - clock.monotonic(), clock):
                tree.there, tree.silent = False, True
        if all(tree.there or tree.silent for tree in self._trees.values()):
            self._fresh_until = clock.monotonic() + FRESH_S

    def check(self, service: str, limits: Limits) -> None:
        """Raises Refused where a job would find less than its service was promised, as of the last
        :meth:`look`."""
        grant = self.of(service)
        if limits.network and not grant.network:
            raise Refused(
                403,
                "not_offered",
                f"the service {service!r} asks for the host's network, which this agent does not "
                "give to it (agent.sandboxing.network)",
            )
        for source, _ in grant.read_only:
            if not self._trees[source].there:
                raise Refused(
                    503,
                    "not_ready",
                    f"{source}, which the jobs of {service!r} need, is not there on this agent",
                )

    def doc(self) -> dict[str, Any]:
        """Service (``*``: all others) -> what is open to it, for ``/health``."""
        return {name: grant.doc() for name, grant in self.opened.items()}

    @property
    def opened(self) -> dict[str, Grant]:
        """Service (``*``: all others) -> its grant, where that is not empty."""
        every = {"*": self._common, **self._services}
        return {name: grant for name, grant in sorted(every.items()) if any(grant.doc().values())}

    @property
    def networked(self) -> list[str]:
        """Services whose jobs may use the host's network."""
        return [name for name, grant in self.opened.items() if grant.network]
