"""Which agent gets a job: the one with the smallest share of its slots in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.domain.leases import Lease


@dataclass(frozen=True, slots=True)
class AgentRoom:
    """An agent that takes jobs of a service now."""

    name: str
    slots: int | None
    """How many jobs it runs at once; None: it does not say."""
    lease: Lease | None = None
    """Under which it gets them."""
    most: int | None = None
    """How many it may get now; None: as many as it has slots for."""


def place(rooms: Sequence[AgentRoom], held: Mapping[str, int], jobs: int) -> list[AgentRoom]:
    """Choose an agent for each of so many jobs.

    Args:
        held: agent's name -> jobs that need a slot of it; missing means 0.
        jobs: how many there are at most.

    Returns:
        The agents, one after the other; fewer than ``jobs`` where the agents have no more room.
    """
    load, placed = Counter(held), Counter[str]()

    def has_room(room: AgentRoom) -> bool:
        return (room.slots is None or load[room.name] < room.slots) and (
            room.most is None or placed[room.name] < room.most
        )

    def share(room: AgentRoom) -> tuple[float, int, str]:
        """In use, then jobs; without slots it counts as having one more than it has jobs."""
        jobs = load[room.name]
        return jobs / max(1, room.slots or jobs + 1), jobs, room.name

    chosen: list[AgentRoom] = []
    while len(chosen) < jobs:
        room = min(filter(has_room, rooms), key=share, default=None)
        if room is None:
            break
        load[room.name] += 1
        placed[room.name] += 1
        chosen.append(room)
    return chosen
