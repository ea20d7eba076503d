"""Folds the lines of a repeated trouble: the first one is logged at once, then one from time to
time with how often there were others, and one when it is over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FIRST_S: Final = 30.0
"""Until a repeated line is logged again; twice as long after each."""
MAX_S: Final = 3_600.0
_QUIET_S: Final = 60.0
"""Without a repetition a trouble is over; where it comes seldom, three times as long as between its
lines."""
REMEMBERED: Final = 1_000
"""Troubles at once; the one that has been quiet longest is forgotten for the next one."""

SUBJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent.down": ("agent",),
    "agent.follow_failed": ("agent",),
    "agent.not_recorded": ("agent",),
    "answer.cut_off": ("peer",),
    "attempt.not_removed": ("attempt",),
    "audit.not_written": (),
    "batch.failed": ("job_id",),
    "cancel.waits": ("job_id",),
    "connection.not_accepted": (),
    "connection.refused": (),
    "delivery.unsettled": ("agent",),
    "gauge.failed": ("gauge",),
    "job.not_deleted": ("job_id",),
    "payload.dropped": ("agent",),
    "payload.end_not_stored": (),
    "payload.failed": ("agent",),
    "payload.former": ("agent",),
    "payload.not_fetched": ("agent",),
    "payload.not_ours": ("agent",),
    "payload.not_packed": ("payload_id",),
    "payload.not_started": (),
    "payload.refused": ("agent",),
    "payload.unknown": ("agent",),
    "payload.waits_for_space": (),
    "poll.failed": (),
    "request.refused": ("status",),
    "service.gone": ("service",),
    "service.unreadable": ("service",),
    "storage.not_listed": ("folder",),
    "sweep.failed": ("sweep",),
    "tls.failed": (),
    "webhook.failed": ("target",),
    "webhook.not_recorded": (),
    "webhook.postponed": ("target",),
}
"""Event -> the fields that say what the trouble is about; others, such as the job that met it, are
those of the latest line. Other warnings and errors are folded when they are alike in every field
but the words of what failed."""
NEVER: Final = frozenset(
    {
        "request.denied",
        "request.done",
        "request.malformed",
        "setting.not_applied",
        "settings.not_reloaded",
        "settings.reload_failed",
        "tls.not_reloaded",
        "trouble.over",
    }
)
"""Outcomes of what somebody asked for; what any caller can cause is limited where it is logged."""
_WORDS: Final = frozenset({"error", "why", "exc_info", "request_id", "principal"})
_FOLDED_LEVELS: Final = frozenset({"warning", "error", "exception", "critical"})


@dataclass(slots=True)
class _Trouble:
    subject: dict[str, Any]
    since: str
    began: float
    last: float
    gap_s: float = 0.0
    """The longest between two lines."""
    every_s: float = FIRST_S
    logged: float = 0.0
    hidden: int = 0
    """Since the last line that was logged."""
    times: int = 1


class Folding:
    """A processor of structlog.

    Args:
        monotonic: seconds from an arbitrary start.
        logger: gets the line that a trouble is over.
    """

    def __init__(self, monotonic: Callable[[], float], logger: Any = None) -> None:
        self._monotonic, self._log = monotonic, logger or log
        self._open: OrderedDict[tuple[Any, ...], _Trouble] = OrderedDict()
        self._looked = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def __call__(
        self, _logger: structlog.typing.WrappedLogger, level: str, line: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Let a line pass, or drop it."""
        event = str(line.get("event"))
        if event in NEVER or (event not in SUBJECTS and level not in _FOLDED_LEVELS):
            return line
        names = SUBJECTS.get(event)
        if names is None:
            names = tuple(sorted(set(line) - _WORDS - {"event", "level", "timestamp", "program"}))
        subject = {name: line[name] for name in names if name in line}
        key = (event, *((name, repr(value)) for name, value in subject.items()))
        now = self._monotonic()
        self.flush(now)
        trouble = self._open.get(key)
        if trouble is None:
            self._open[key] = _Trouble(subject, str(line.get("timestamp")), now, now, logged=now)
            while len(self._open) > REMEMBERED:
                (oldest, *_), forgotten = self._open.popitem(last=False)
                self._over(oldest, forgotten, is_known=False)
            return line
        self._open.move_to_end(key)
        trouble.gap_s, trouble.last = max(trouble.gap_s, now - trouble.last), now
        trouble.times += 1
        if now < trouble.logged + trouble.every_s:
            trouble.hidden += 1
            raise structlog.DropEvent
        trouble.logged, trouble.every_s = now, min(MAX_S, 2 * trouble.every_s)
        line["repeated"], trouble.hidden = trouble.hidden + 1, 0
        line["since"] = trouble.since
        return line

    def over(self, event: str, **subject: Any) -> None:
        """What failed has succeeded: the trouble is over."""
        names = SUBJECTS[event]
        key = (event, *((name, repr(subject[name])) for name in names))
        if (trouble := self._open.pop(key, None)) is not None:
            self._over(event, trouble, is_known=True)

    def flush(self, now: float | None = None) -> None:
        """Forget the troubles that have not come back for long enough."""
        now = self._monotonic() if now is None else now
        if now < self._looked + 1:
            return
        self._looked = now
        for key, trouble in list(self._open.items()):
            quiet_s = max(_QUIET_S, 3 * trouble.gap_s) if trouble.times > 1 else MAX_S
            if now - trouble.last > quiet_s:
                del self._open[key]
                self._over(key[0], trouble, is_known=False)

    def _over(self, event: str, trouble: _Trouble, *, is_known: bool) -> None:
        if is_known or trouble.hidden:
            lasted_s = round(trouble.last - trouble.began)
            self._log.info(
                "trouble.over",
                trouble=event,
                times=trouble.times,
                not_shown=trouble.hidden,
                since=trouble.since,
                lasted_s=lasted_s,
                **trouble.subject,
            )
