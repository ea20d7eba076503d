"""The right of one server, for a time, to use an agent and to move the jobs that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LENGTH_S: Final = 30.0
"""After that a lease that was not renewed may be taken over."""
RENEW_EVERY_S: Final = LENGTH_S / 3

_AGENT: Final = "agent:"


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was acquired.

    Attributes:
        name: what it is for, see :func:`of_agent` and :func:`of_server`.
        owner: the run of a server that holds it.
        token: higher with each new owner. A write that names a lower one is refused.
    """

    name: str
    owner: str
    token: int

    @property
    def agent(self) -> str:
        """Name of the agent that it is for."""
        return self.name.removeprefix(_AGENT)


def of_agent(name: str) -> str:
    """Name of the lease whose holder follows the agent and makes all deliveries to it."""
    return _AGENT + name


def of_server(owner: str) -> str:
    """Name of the lease that says that a run of a server is alive."""
    return f"server:{owner}"
