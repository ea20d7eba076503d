"""Whether this agent can accept an attempt now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from client_agent.intake.mount_sources import MountSources
from client_agent.payloads.errors import Refused
from client_agent.sandbox.grants import Grants
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage.folders import Folders
from shared.clock import Clock
from shared.units.sizes import say_size
from shared.wire import Limits


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
