"""What an operator opens of the host for the jobs of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_agent.errors import Refused
from client_agent.sandbox.base import Grant
from shared.wire import Limits


class Grants:
    """The grants of one agent.

    Args:
        common: for services without one of their own.
    """

    def __init__(self, common: Grant, services: Mapping[str, Grant]) -> None:
        self._common, self._services = common, services

    def of(self, service: str) -> Grant:
        return self._services.get(service, self._common)

    def check(self, service: str, limits: Limits) -> None:
        """Raises Refused where a job would find less than its service was promised."""
        grant = self.of(service)
        if limits.network and not grant.network:
            raise Refused(
                403,
                "not_offered",
                f"the service {service!r} asks for the host's network, which this agent does not "
                "give to it (agent.sandboxing.network)",
            )
        for source, _ in grant.read_only:
            if not source.exists():
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
