"""Whom to serve next: round-robin over users, first come first served within a user."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.domain.service import Service


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job that may be sent now."""

    job_id: int
    user_id: str
    attempt: int = 0
    """Attempts made so far."""
    array_index: int | None = None


def free_slots(service: Service, held: Mapping[str, int]) -> int:
    """Slots of the service that are free, over all users; never negative."""
    return max(0, service.max_runs - sum(held.values()))


def pick(
    queue: Sequence[Waiting],
    held: Mapping[str, int],
    service: Service,
    most: int | None = None,
) -> list[Waiting]:
    """Choose the jobs of one service to send now.

    Args:
        queue: waiting jobs; users in the order in which they are due, each user's jobs oldest
            first.
        held: user -> slots in use (HOLDS_SLOT); missing means 0.
        most: at most so many.

    Returns:
        In sending order: everybody's first, then everybody's second. Never exceeds either quota.
    """
    free = free_slots(service, held)
    if most is not None:
        free = min(free, most)
    lines: dict[str, deque[Waiting]] = defaultdict(deque)
    for waiting in queue:
        may_run = service.runs_of(waiting.user_id) - held.get(waiting.user_id, 0)
        if len(lines[waiting.user_id]) < may_run:
            lines[waiting.user_id].append(waiting)
    chosen: list[Waiting] = []
    turn = deque(line for line in lines.values() if line)
    while turn and len(chosen) < free:
        line = turn.popleft()
        chosen.append(line.popleft())
        if line:
            turn.append(line)
    return chosen
