"""Grants: what an operator gives the jobs of a service beyond what every job has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Grant:
    """What an operator gives the jobs of one service."""

    read_only: tuple[tuple[Path, str], ...] = ()
    """(host path, path inside) of folders such as software and data sets. They are mounted before
    /job, and never below it."""
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    """Jobs whose limits request it get the host's network."""
    allow: frozenset[str] = frozenset()
    """Relaxations of the system call filter, see
    :data:`client_agent.sandbox.bubblewrap.seccomp.RELAXATIONS`."""
    scratch: int | None = None
    """Bytes of /tmp, and of /dev/shm, inside; None: the sandbox's setting."""

    def doc(self) -> dict[str, Any]:
        """For ``/health`` and receipts. Only names of variables: their values may be secret."""
        return {
            "read_only": [target for _, target in self.read_only],
            "env": sorted(self.env),
            "network": self.network,
            "allow": sorted(self.allow),
        }


class Grants:
    """The grants of one agent.

    Args:
        common: the grant of services without one of their own.
    """

    def __init__(self, common: Grant, services: Mapping[str, Grant]) -> None:
        self._common, self._services = common, services

    def for_service(self, service: str) -> Grant:
        return self._services.get(service, self._common)

    @property
    def sources(self) -> list[Path]:
        """The host paths of all grants."""
        grants = (self._common, *self._services.values())
        return sorted({path for grant in grants for path, _ in grant.read_only})

    def doc(self) -> dict[str, Any]:
        """Service (``*``: all others) -> its grant as JSON, for ``/health``."""
        return {name: grant.doc() for name, grant in self.granted.items()}

    @property
    def granted(self) -> dict[str, Grant]:
        """Service (``*``: all others) -> its grant, unless that is empty."""
        grants = {"*": self._common, **self._services}
        return {name: grant for name, grant in sorted(grants.items()) if any(grant.doc().values())}

    @property
    def networked(self) -> list[str]:
        """Services whose jobs may use the host's network."""
        return [name for name, grant in self.granted.items() if grant.network]
