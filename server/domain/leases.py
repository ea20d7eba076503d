"""The right of one server, for a time, to talk to an agent and to move the jobs that it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was acquired.

    Attributes:
        name: what it is for, as in ``agent:north``.
        owner: the run of a server that holds it.
        token: one more with each new owner. A write that names a lower one is refused.
    """

    name: str
    owner: str
    token: int
