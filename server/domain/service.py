"""A service: what it allows, and how much of it one user may have."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.wire import Limits


@dataclass(frozen=True, slots=True)
class Service:
    """A named kind of work. Durations in seconds."""

    name: str
    runs_per_user: int = 5
    max_runs: int = 10
    queued_per_user: int = 0
    """Most jobs of one user that may wait; 0: any number."""
    timeout_s: float = 3_600.0
    queue_timeout_s: float = 0.0
    """0: waits for ever."""
    expires_after_s: float = 172_800.0
    forget_after_s: float = 7_776_000.0
    """0: never."""
    retries: int = 0
    retry_delays_s: tuple[float, ...] = (10.0, 60.0, 300.0)
    retry_on: frozenset[str] = frozenset()
    """Reason codes, and exit codes as "exit:3"."""
    infra_retries: int = 5
    limits: Limits = field(default_factory=Limits)
