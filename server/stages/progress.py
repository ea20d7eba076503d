"""What running jobs say: progress, values and lines for people, on their way into the store.

An agent repeats all of it in each report, so only the latest report of an attempt is kept, in
memory, and all of them are written together, some times a second. After a crash the next report
brings them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.domain.live import Live, Report, live_of, progress_event_due
from server.stages.stage import Core, Stage
from server.store import events
from shared.ids import AttemptKey
from shared.wire import LiveDoc, PayloadDoc, PayloadState
from shared.wire import Progress as ProgressValue

_AT_ONCE = 250
"""Attempts in one transaction: other changes wait for it."""


@dataclass(slots=True)
class _Followed:
    """An attempt that runs, and what was written of it."""

    agent: str
    payload: tuple[int, str | None]
    """Id and digest of its payload."""
    since: float
    """Monotonic, as the next one."""
    sampled_at: float | None = None
    sampled: tuple[ProgressValue | None, str] = (None, "")
    said: tuple[int, frozenset[str]] = (0, frozenset())
    """Number of notices, and names of values."""


class Progress(Stage):
    """Takes reports about attempts that are known to run; the Getter says which do."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._followed: dict[AttemptKey, _Followed] = {}
        self._latest: dict[AttemptKey, LiveDoc] = {}
        """What was reported last and is not written yet."""

    def follow(self, agent: str, key: AttemptKey, payload: PayloadDoc) -> None:
        """The job's current attempt runs there, as its row says: its next reports are taken."""
        if payload.status is PayloadState.RUNNING:
            which = (payload.id, payload.bundle_digest)
            known = self._followed.get(key)
            if known is None or (known.agent, known.payload) != (agent, which):
                self._followed[key] = _Followed(agent, which, self._clock.monotonic())
            self.take(agent, payload)

    def take(self, agent: str, payload: PayloadDoc) -> bool:
        """Keep the report, if it is about an attempt that is followed and says nothing but that it
        runs; returns whether that is so.
        """
        if payload.status is not PayloadState.RUNNING or payload.live is None:
            return False
        try:
            key = AttemptKey.parse(payload.key or "")
        except ValueError:
            return False
        known = self._followed.get(key)
        which = (payload.id, payload.bundle_digest)
        if known is None or (known.agent, known.payload) != (agent, which):
            return False
        self._latest[key] = payload.live
        return True

    def forget(self, key: AttemptKey) -> None:
        """The attempt does not run any more."""
        self._followed.pop(key, None)
        self._latest.pop(key, None)

    def forget_agent(self, agent: str | None) -> None:
        """What its attempts do has to be found out again (None: of all agents)."""
        for key in [key for key, one in self._followed.items() if agent in (None, one.agent)]:
            self.forget(key)

    async def run_once(self) -> int:
        """Write what was reported since the last time; of how many attempts."""
        latest, self._latest = self._latest, {}
        written = 0
        try:
            while latest:
                some = [key for key, _ in zip(latest, range(_AT_ONCE), strict=False)]
                written += await self._write({key: latest[key] for key in some})
                for key in some:
                    del latest[key]
        finally:  # what could not be written is written later, unless there is a newer report
            self._latest = {
                key: document for key, document in latest.items() if key in self._followed
            } | self._latest
        return written

    async def _write(self, documents: dict[AttemptKey, LiveDoc]) -> int:
        reports = []
        for key, document in documents.items():
            known = self._followed.get(key)
            if known is None:
                continue
            reports.append(self._report(key, known, live_of(document, self._clock.now())))
        if not reports:
            return 0
        running = await self._database.write(events.record_live, reports)
        for report in reports:
            if report.key in running:
                self._remember(report)
            else:  # the next report is compared with what the job is by then
                self.forget(report.key)
        return len(running)

    def _report(self, key: AttemptKey, known: _Followed, live: Live) -> Report:
        now = self._clock.monotonic()
        since_last_s = None if known.sampled_at is None else now - known.sampled_at
        return Report(
            key=key,
            agent=known.agent,
            at=self._clock.now(),
            live=live,
            news=_said(live) != known.said,
            sampled=(live.progress, live.message) != known.sampled
            and progress_event_due(now - known.since, since_last_s),
        )

    def _remember(self, report: Report) -> None:
        known = self._followed.get(report.key)
        if known is not None:
            known.said = _said(report.live)
            if report.sampled:
                known.sampled_at = self._clock.monotonic()
                known.sampled = (report.live.progress, report.live.message)


def _said(live: Live) -> tuple[int, frozenset[str]]:
    return len(live.notices), frozenset(live.output)
