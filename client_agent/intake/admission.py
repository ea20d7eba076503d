"""Whether this agent can accept an attempt now."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.payloads.errors import Refused
from client_agent.sandbox.base import Grant, Grants
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage.folders import Folders
from shared.clock import Clock, wait_for
from shared.units.sizes import say_size
from shared.wire import Limits

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


@dataclass(slots=True)
class Identity:
    """What the agent says of itself. A reload may change its services."""

    agent_id: str
    """Made at the first start; stays the same under any name."""
    name: str
    version: str
    slots: int
    labels: Mapping[str, str]
    services: tuple[str, ...] | None
    """None: any."""
    min_free: int
    """Bytes of disk that must stay free; with less, nothing is accepted or started."""


DRAINING: Final = "the agent is draining: it finishes what it has and takes nothing more"


class Admission:
    """The checks before an attempt is accepted.

    Attributes:
        shutting_down: set once the agent stops.
        draining: set once it is to finish what it has, and then stop.
    """

    def __init__(
        self,
        identity: Identity,
        folders: Folders,
        sandbox: SandboxWatch,
        grants: Grants,
        clock: Clock,
    ) -> None:
        self.shutting_down = self.draining = False
        self.identity = identity
        self._folders, self._sandbox = folders, sandbox
        self._grants, self._clock = grants, clock
        self._sources = MountSources(grants.sources)

    async def check_ready(self, size: int) -> None:
        """Whether an attempt can be accepted now; of which service is not known yet. Raises
        Refused.

        Args:
            size: bytes of its bundle, as far as known.
        """
        self.check_running()
        self.check_space(size)
        problem = await self._sandbox.problem()
        if problem is not None:
            raise Refused(503, "sandbox_broken", problem)
        await self._sources.refresh(self._clock)

    def check_running(self) -> None:
        """Raises Refused when the agent shuts down or drains."""
        if self.shutting_down:
            raise Refused(503, "shutting_down", "the agent is shutting down")
        if self.draining:
            raise Refused(503, "draining", DRAINING)

    def check_service(self, service: str, limits: Limits) -> None:
        """Whether the service is offered here with these limits, and its folders are there, as of
        the last :meth:`check_ready`. Raises Refused."""
        offered = self.identity.services
        if offered is not None and service not in offered:
            raise Refused(403, "not_offered", f"this agent does not offer the service {service!r}")
        grant = self._grants.for_service(service)
        if limits.network and not grant.network:
            raise Refused(
                403,
                "not_offered",
                f"the service {service!r} asks for the host's network, which this agent does not "
                "give to it (agent.sandboxing.network)",
            )
        missing = self._sources.missing(grant)
        if missing is not None:
            raise Refused(
                503,
                "not_ready",
                f"{missing}, which the jobs of {service!r} need, is not there on this agent",
            )

    def check_space(self, size: int) -> None:
        """Raises Refused when a file of ``size`` bytes would leave too little free space."""
        try:
            free = self._folders.free_bytes()
        except OSError as problem:
            raise Refused(
                503, "disk_broken", f"the data folder cannot be used: {problem}"
            ) from None
        if free - size < self.identity.min_free:
            raise Refused(
                507,
                "disk_full",
                f"too little space on the agent's disk: {say_size(free)} are free, "
                f"{say_size(self.identity.min_free)} must stay free",
            )
