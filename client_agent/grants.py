"""What an operator opens of the host for the jobs of a service."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from client_agent.errors import Refused
from client_agent.sandbox.base import Grant
from shared.clock import Clock, wait_for
from shared.wire import Limits

LOOK_S: Final = 2.0
"""A file server that takes longer to say whether a folder is there is of no use to a job."""


class Trees:
    """Which folders of the host are there. Asking for one on a file server that is gone may take
    for ever, and must hold up neither the event loop nor the end of the process.

    Attributes:
        there: as of the last look; one that does not answer is not there.
    """

    def __init__(self, paths: set[Path], exists: Callable[[Path], bool]) -> None:
        self.there: set[Path] = set()
        self._paths, self._exists = sorted(paths), exists
        self._asking: Path | None = None
        self._done: asyncio.Event | None = None
        """Of the look under way; there is one at a time, however long it takes."""

    async def look(self, clock: Clock) -> None:
        if not self._paths:
            return
        done = self._done
        if done is None or done.is_set():
            done = self._done = asyncio.Event()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._look, args=(loop, done), daemon=True).start()
        if not await wait_for(done, LOOK_S, clock) and self._asking is not None:
            self.there.discard(self._asking)

    def _look(self, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
        for path in self._paths:
            self._asking = path
            if self._exists(path):
                self.there.add(path)
            else:
                self.there.discard(path)
        self._asking = None
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(done.set)


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
        self._trees = Trees({path for grant in every for path, _ in grant.read_only}, exists)

    def of(self, service: str) -> Grant:
        return self._services.get(service, self._common)

    async def look(self, clock: Clock) -> None:
        """Look which trees are there; not longer than :data:`LOOK_S`."""
        await self._trees.look(clock)

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
            if source not in self._trees.there:
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
