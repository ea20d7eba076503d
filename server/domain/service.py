"""A service: what it allows, and how much of it one user may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.domain.retry_policy import RetryPolicy
from shared.wire import Limits, OnShutdown


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
    heartbeat_timeout_s: float = 0.0
    """0: off."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_retries: int = 10
    """Most that an upload may ask for."""
    retry_later_delay_s: float = 60.0
    """Where a bundle that asks to be tried later does not say when."""
    retry_later_limit: int = 100
    """How often one run of a job may ask for it."""
    on_shutdown: OnShutdown = "stop"
    dead_letter: bool = False
    dead_letter_expires_after_s: float = 0.0
    """0: kept until somebody retries or drops it."""
    max_children: int = 10_000
    """Most children of one batch."""
    paused: bool = False
    """Its queued jobs wait."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that its jobs get, secrets among them. Never shown."""
    infra_retries: int = 5
    limits: Limits = field(default_factory=Limits)
