"""A service: what it allows, and how much of it one user may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

from server.domain.retry import RetryPolicy
from shared.clock import Micros
from shared.wire import Limits, OnShutdown

SERVICE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
T = TypeVar("T")


@dataclass(frozen=True)
class ByUser(Generic[T]):
    """Values of some users.

    Attributes:
        values: user, or the beginning of the names of some as in ``lab-*``, -> value. No user is
            in two.
    """

    values: Mapping[str, T] = field(default_factory=dict)

    @cached_property
    def _beginnings(self) -> list[tuple[str, T]]:
        return [(name[:-1], value) for name, value in self.values.items() if name[-1] == "*"]

    def get(self, user: str) -> T | None:
        """The value of one; None: it has none."""
        found = self.values.get(user)
        if found is None:
            of_some = (value for start, value in self._beginnings if user.startswith(start))
            found = next(of_some, None)
        return found


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A row of the store: what operators decided about a service while servers were running."""

    name: str
    settings: Mapping[str, Any] | None = None
    """As they would stand in the file; None: an operator gave none, it is only in the file."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    paused: bool = False
    paused_message: str = ""
    retired: bool = False
    changed_at: Micros = 0


@dataclass(frozen=True, slots=True)
class Service:
    """A named kind of work: what its table of the settings says (docs/operate.md), and more.
    Durations are in seconds; a limit or a duration of 0 is none.
    """

    name: str
    runs_per_user: int = 5
    max_runs: int = 10
    queued_per_user: int = 0
    timeout_s: float = 3_600.0
    queue_timeout_s: float = 0.0
    expires_after_s: float = 172_800.0
    forget_after_s: float = 7_776_000.0
    heartbeat_timeout_s: float = 0.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_retries: int = 10
    retry_later_delay_s: float = 60.0
    retry_later_limit: int = 100
    on_shutdown: OnShutdown = "resubmit"
    dead_letter: bool = False
    dead_letter_expires_after_s: float = 0.0
    max_children: int = 10_000
    pack: int = 0
    infra_retries: int = 5
    limits: Limits = field(default_factory=Limits)
    paused: bool = False
    """Its queued jobs wait."""
    paused_message: str = ""
    """Why, in the operator's words."""
    retired: bool = False
    """It takes no new jobs; those that it has go on to their end."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that its jobs get. Their values are never shown."""
    runs_by_user: ByUser[int] = field(default_factory=ByUser)
    """Users for whom another number holds than ``runs_per_user``."""
    queued_by_user: ByUser[int] = field(default_factory=ByUser)
    """Likewise of ``queued_per_user``."""
    record: ServiceRecord | None = None
    """Its row; None: it has none yet."""
    in_file: bool = True
    """Its settings are the file's; else its row's."""
    given: frozenset[str] = frozenset()
    """Keys of the settings that say something of it; the others are as for every service."""

    def runs_of(self, user_id: str) -> int:
        """Jobs of the user that may be under way at once."""
        found = self.runs_by_user.get(user_id)
        return self.runs_per_user if found is None else found

    def queued_of(self, user_id: str) -> int:
        """Jobs of the user that may wait; 0: any number."""
        found = self.queued_by_user.get(user_id)
        return self.queued_per_user if found is None else found

    def pack_of(self, array_index: int | None) -> int:
        """How many like a job share a slot of an agent that packs."""
        return 1 if array_index is None else max(1, self.pack)
