"""Whether this agent can take work now, and what it says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import structlog

from client_agent.check import record
from client_agent.payloads.errors import Refused
from client_agent.payloads.store import Payloads
from client_agent.sandbox.grants import Grants
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage.folders import Folders
from shared.clock import Clock
from shared.probe import Probe
from shared.sqlite.errors import DatabaseUnavailable
from shared.units.sizes import say_size
from shared.wire import AgentHealth, Limits

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_NOT_TAKEN: Final = "no new bundles are taken"


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change while the agent runs."""

    name: str
    version: str
    slots: int
    services: tuple[str, ...] | None
    """None: any."""
    min_free: int
    """Bytes that must stay free."""


class Condition:
    """The agent's state of health.

    Attributes:
        leaving: the agent shuts down.
    """

    def __init__(
        self,
        identity: Identity,
        payloads: Payloads,
        folders: Folders,
        sandbox: SandboxWatch,
        grants: Grants,
        clock: Clock,
    ) -> None:
        self.leaving = False
        self.identity = identity
        self._payloads, self._folders, self._sandbox = payloads, folders, sandbox
        self._grants, self._clock = grants, clock
        self._disk = Probe("the data folder", self._look_at_disk, clock)

    async def check_work(self, size: int) -> None:
        """Whether an attempt can be taken now.

        Args:
            size: bytes of its bundle, as far as known.

        Raises:
            Refused
        """
        self.check_staying()
        self.check_space(size)
        trouble = await self._sandbox.trouble()
        if trouble is not None:
            raise Refused(503, "sandbox_broken", trouble)
        await self._grants.look(self._clock)

    def check_staying(self) -> None:
        """Raises Refused when the agent shuts down."""
        if self.leaving:
            raise Refused(503, "shutting_down", "the agent is shutting down")

    def check_service(self, service: str, limits: Limits) -> None:
        """Raises Refused when the service is not offered here, or not with these limits."""
        offered = self.identity.services
        if offered is not None and service not in offered:
            raise Refused(403, "not_offered", f"this agent does not offer the service {service!r}")
        self._grants.check(service, limits)

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

    async def health(self, running: int) -> tuple[AgentHealth, bool]:
        """What ``GET /health`` tells, and whether all is well."""
        database = await self._database()
        problems = [] if database == "ok" else [f"database: {database}"]
        # No space is not broken: were it avoided now, nobody would come for the results that fill
        # the disk.
        seen = await self._disk.troubles()
        notes = [trouble for trouble in seen if trouble.startswith(_NOT_TAKEN)]
        problems += [trouble for trouble in seen if trouble not in notes]
        broken = await self._sandbox.trouble()
        if broken is not None:
            (notes if notes else problems).append(broken)  # without space it cannot be tested
        if self.leaving:
            problems.append("the agent is shutting down")
        identity = self.identity
        told = AgentHealth(
            status="error" if problems else "ok",
            database=database,
            agent=identity.name,
            version=identity.version,
            slots=identity.slots,
            running=running,
            services=None if identity.services is None else list(identity.services),
            sandbox=self._sandbox_doc(broken),
            message="; ".join(problems + notes),
        )
        return told, not problems

    def _look_at_disk(self) -> list[str]:
        """Runs in a thread."""
        try:
            self._folders.check_writable()
            self.check_space(0)
        except Refused as problem:
            return [f"{_NOT_TAKEN}: {problem.message}"]
        except OSError as problem:
            return [f"the data folder cannot be written: {problem.strerror or problem}"]
        return []

    async def _database(self) -> str:
        if self._payloads.trouble is None:
            return "ok"
        try:
            await self._payloads.probe()  # it may have recovered
        except DatabaseUnavailable as problem:
            return str(problem)
        return "ok"

    def _sandbox_doc(self, broken: str | None) -> dict[str, Any]:
        report = self._sandbox.report
        warnings = ["bundles run without isolation"] if report.backend == "none" else []
        if self._grants.networked:
            services = ", ".join(self._grants.networked).replace("*", "any service")
            warnings.append(f"jobs of {services} may use this host's network")
        return {
            "backend": report.backend,
            "version": report.version,
            "enforcement": dict(report.enforcement),
            "checks": dict(report.checks),
            "advice": list(report.advice),
            "opened": self._grants.doc(),
            "warning": "; ".join(warnings),
            "broken": broken,
            "check": record.read(self._folders.home),
        }
