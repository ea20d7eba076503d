"""Which agent gets a job: the one with the smallest share of its slots in use."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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
    max_runs: int | None = None
    """How many of the service it may have at once; None: any number."""
    packs: bool = False
    """It starts one sandbox for several jobs of an array, which take a part of a slot each."""

    def takes(self, held: float) -> bool:
        """Whether it takes one more than so many."""
        return self.slots is None or held < self.slots + self.prefetch


def place(
    candidates: Sequence[Candidate],
    held: Mapping[str, float],
    packs: Sequence[int],
    runs: Mapping[str, int] = MappingProxyType({}),
) -> list[Candidate]:
    """Choose an agent for each of some jobs of a service.

    Args:
        held: agent's name -> slots of it that jobs need; missing means 0.
        packs: of each job, how many like it share a slot of an agent that packs.
        runs: agent's name -> jobs of the service that it has; missing means 0.

    Returns:
        The agents, one after the other; fewer than jobs where not enough slots are free. An agent
        that is to prefetch jobs gets them when no agent has a free slot.
    """
    load, placed = defaultdict[str, float](float, held), Counter[str]()
    room = {
        one.name: min(one.most or math.inf, (one.max_runs or math.inf) - runs.get(one.name, 0))
        for one in candidates
    }

    def has_room(candidate: Candidate) -> bool:
        name = candidate.name
        return candidate.takes(load[name]) and placed[name] < room[name]

    def share(candidate: Candidate) -> tuple[float, float, str]:
        """Used share of its slots, then jobs. Of slots that are not known one is always free."""
        jobs = load[candidate.name]
        return jobs / max(1, candidate.slots or jobs + 1), jobs, candidate.name

    chosen: list[Candidate] = []
    for pack in packs:
        candidate = min(filter(has_room, candidates), key=share, default=None)
        if candidate is None:
            break
        load[candidate.name] = add(load[candidate.name], pack if candidate.packs else 1)
        placed[candidate.name] += 1
        chosen.append(candidate)
    return chosen


def add(slots: float, pack: int, jobs: int = 1) -> float:
    """The slots, and those of more jobs of which so many share one. Parts add up to whole slots."""
    return round(slots + jobs / pack, 6)
