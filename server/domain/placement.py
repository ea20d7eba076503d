"""Which agent gets a job: the one with the smallest share of its slots in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.domain.leases import Lease


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that takes jobs of a service now."""

    name: str
    slots: int | None
    """How many jobs it runs at once; None: it does not say."""
    lease: Lease | None = None
    """Under which it gets them."""
    prefetch: int = 0
    """How many it takes beyond its slots."""
    most: int | None = None
    """How many it may get now; None: as many as it takes."""

    def takes(self, held: int) -> bool:
        """Whether it takes one more than so many."""
        return self.slots is None or held < self.slots + self.prefetch


def place(candidates: Sequence[Candidate], held: Mapping[str, int], jobs: int) -> list[Candidate]:
    """Choose an agent for each of so many jobs.

    Args:
        held: agent's name -> jobs that need a slot of it; missing means 0.
        jobs: how many there are at most.

    Returns:
        The agents, one after the other; fewer than ``jobs`` where not enough slots are free. An
        agent that is to prefetch jobs gets them when no agent has a free slot.
    """
    load, placed = Counter(held), Counter[str]()

    def has_room(candidate: Candidate) -> bool:
        return candidate.takes(load[candidate.name]) and (
            candidate.most is None or placed[candidate.name] < candidate.most
        )

    def share(candidate: Candidate) -> tuple[float, int, str]:
        """Used share of its slots, then jobs. Of slots that are not known one is always free."""
        jobs = load[candidate.name]
        return jobs / max(1, candidate.slots or jobs + 1), jobs, candidate.name

    chosen: list[Candidate] = []
    while len(chosen) < jobs:
        candidate = min(filter(has_room, candidates), key=share, default=None)
        if candidate is None:
            break
        load[candidate.name] += 1
        placed[candidate.name] += 1
        chosen.append(candidate)
    return chosen
