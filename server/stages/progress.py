"""What running jobs say: progress, values and lines for people, on their way into the store.

An agent repeats all of it in each report, so only the latest report of an attempt is kept, in
memory, and all of them are written together, some times a second. After a crash the next report
brings them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.domain.live import Live, Report, live_of, progress_event_due
from server.stages.stage import Core, Stage
from server.store import events
from shared.ids import AttemptKey
from shared.wire import LiveDoc, PayloadDoc, PayloadState
from shared.wire import Progress as ProgressValue

_AT_ONCE = 250
"""Attempts in one transaction: other changes wait for it."""


@dataclass(slots=True, eq=False)
class _Followed:
    """An attempt that runs, and what was written of it."""

    agent: str
    payload: tuple[int, str | None]
    """Id and digest of its payload."""
    since: float
    """Monotonic, as ``sampled_at``."""
    latest: LiveDoc | None = None
    """What was reported last and is not written yet."""
    sampled_at: float | None = None
    sampled: tuple[ProgressValue | None, str] = (None, "")
    said: tuple[int, frozenset[str]] = (0, frozenset())
    """Number of notices, and names of values."""


class Progress(Stage):
    """Takes reports about attempts that are known to run; the Getter says which do."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._followed: dict[AttemptKey, _Followed] = {}

    def follow(self, agent: str, key: AttemptKey, payload: PayloadDoc) -> None:
        """The job's current attempt runs there, as its row says: its next reports are taken."""
        if payload.status is PayloadState.RUNNING and not self.take(agent, payload):
            which = (payload.id, payload.bundle_digest)
            self._followed[key] = _Followed(agent, which, self.core.clock.monotonic(), payload.live)

    def take(self, agent: str, payload: PayloadDoc) -> bool:
        """Keep the report, if it is about an attempt that is followed and says nothing but that it
        runs; returns whether that is so.
        """
        key = AttemptKey.read(payload.key)
        if key is None or payload.status is not PayloadState.RUNNING or payload.live is None:
            return False
        known = self._followed.get(key)
        which = (payload.id, payload.bundle_digest)
        if known is None or (known.agent, known.payload) != (agent, which):
            return False
        known.latest = payload.live
        return True

    def forget(self, key: AttemptKey) -> None:
        """The attempt does not run any more."""
        self._followed.pop(key, None)

    def forget_agent(self, agent: str | None) -> None:
        """What its attempts do has to be found out again (None: of all agents)."""
        for key in [key for key, one in self._followed.items() if agent in (None, one.agent)]:
            self.forget(key)

    async def run_once(self) -> int:
        """Write what was reported since the last time; of how many attempts."""
        keys = [key for key, one in self._followed.items() if one.latest is not None]
        written = 0
        for start in range(0, len(keys), _AT_ONCE):
            written += await self._write(keys[start : start + _AT_ONCE])
        return written

    async def _write(self, keys: Sequence[AttemptKey]) -> int:
        """What cannot be written is written later, unless there is a newer report."""
        written = [
            (key, known, document)
            for key in keys
            if (known := self._followed.get(key)) and (document := known.latest) is not None
        ]
        reports = [
            self._report(key, known, live_of(document, self.core.clock.now()))
            for key, known, document in written
        ]
        running = await self.core.database.write(events.record_live, reports) if reports else set()
        for (key, known, document), report in zip(written, reports, strict=True):
            if known.latest is document:
                known.latest = None
            if key not in running:  # the next report is compared with what the job is by then
                self.forget(key)
            known.said = _said(report.live)
            if report.sampled:
                known.sampled_at = self.core.clock.monotonic()
                known.sampled = (report.live.progress, report.live.message)
        return len(running)

    def _report(self, key: AttemptKey, known: _Followed, live: Live) -> Report:
        now = self.core.clock.monotonic()
        since_last_s = None if known.sampled_at is None else now - known.sampled_at
        return Report(
            key=key,
            agent=known.agent,
            at=self.core.clock.now(),
            live=live,
            news=_said(live) != known.said,
            sampled=(live.progress, live.message) != known.sampled
            and progress_event_due(now - known.since, since_last_s),
        )


def _said(live: Live) -> tuple[int, frozenset[str]]:
    return len(live.notices), frozenset(live.output)
