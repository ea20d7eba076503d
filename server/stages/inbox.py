"""What agents have reported and no row says yet: of each payload the latest document."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from server.agents.agent import Agent
from server.domain import outcome
from shared.clock import Clock, Micros
from shared.ids import AttemptKey
from shared.wire import PayloadDoc

_MAX_PLACES: Final = 1_000
"""Payloads of one agent; then no more are read from it."""
_LARGE: Final = 16 << 10
"""Bytes of a payload's document that count as one more payload."""
_MAX_BYTES: Final = 8 << 20
"""Of one agent's results in memory, and of those that are taken at once. What comes beyond that is
let go, and fetched in its turn: an agent that is faster than this server's disk costs no more
memory than this."""
Which: TypeAlias = tuple[str, int]
"""Agent, and id of the payload there."""


@dataclass(slots=True, eq=False)
class Report:
    """What an agent says of one payload.

    Attributes:
        key: of the attempt.
        due: from when on it is to be looked at (monotonic).
        content: its result, where that came with it; to be checked.
        taken_at: when the agent took the attempt, where no row says so yet.
        tries: how often it could not be followed.
        failing_since: when it could not for the first time (monotonic).
        places: of its agent's, which it takes.
        fetching: its attempt has ended, and there is room for what it left.
    """

    agent: Agent
    payload: PayloadDoc
    key: AttemptKey
    due: float
    content: bytes | None = None
    taken_at: Micros | None = None
    tries: int = 0
    failing_since: float | None = None
    places: int = 0
    fetching: bool = False

    @property
    def which(self) -> Which:
        return self.agent.name, self.payload.id

    @property
    def result(self) -> bytes | None:
        """The payload's result; None: it has not come, or not as announced."""
        announced, content = self.payload.result, self.content
        if content is None or announced is None or len(content) != announced.size:
            return None
        return content if hashlib.sha256(content).hexdigest() == announced.sha256 else None

    def take_over(self, earlier: Report) -> None:
        """What is known of the same payload by an earlier report."""
        self.due = min(self.due, earlier.due)
        self.content = earlier.content if self.content is None else self.content
        self.taken_at = earlier.taken_at if self.taken_at is None else self.taken_at
        self.tries, self.failing_since = earlier.tries, earlier.failing_since
        self.places += earlier.places


class Inbox:
    """Reports, until they are followed. A newer document of a payload replaces one that was not
    looked at.

    An agent says soon after each other that it has an attempt, that this runs, and often that it
    has ended. What goes on waits a moment, so that these are one move; what has ended waits for
    nothing.

    Args:
        delay_s: so long what goes on waits.
        wake: called when there is a new one.
    """

    def __init__(self, delay_s: float, clock: Clock, wake: Callable[[], None]) -> None:
        self._delay_s, self._clock, self._wake = delay_s, clock, wake
        self._waiting: dict[Which, Report] = {}
        self._busy: dict[Which, Report] = {}
        """Those that are being looked at."""
        self._places: dict[str, asyncio.Semaphore] = {}
        self._bytes = Counter[str]()

    async def receive(
        self, agent: Agent, payload: PayloadDoc, content: bytes | None, size: int
    ) -> None:
        """As :meth:`put`; waits while too many of the agent's payloads, or too large ones, are not
        followed yet. So an agent that reports without end fills its connection only. ``size``:
        bytes of the document.
        """
        which = (agent.name, payload.id)
        places = self._places.setdefault(agent.name, asyncio.Semaphore(_MAX_PLACES))
        taken, is_new = 0, which not in self._waiting and which not in self._busy
        try:
            while taken < size // _LARGE + is_new:
                await places.acquire()
                taken += 1
        except asyncio.CancelledError:
            self._release(agent.name, taken)
            raise
        self.put(agent, payload, content, places=taken)

    def put(
        self,
        agent: Agent,
        payload: PayloadDoc,
        content: bytes | None = None,
        taken_at: Micros | None = None,
        places: int = 0,
    ) -> None:
        """Add a report, unless it has no key: what polls an agent without keys adds one, and sees
        what becomes of the others.
        """
        try:
            key = AttemptKey.parse(payload.key or "")
        except ValueError:
            self._release(agent.name, places)
            return
        due = self._clock.monotonic()
        if payload.status not in outcome.ENDED:
            due += self._delay_s
        if content is not None and self._bytes[agent.name] + len(content) > _MAX_BYTES:
            content = None
        self._bytes[agent.name] += len(content or b"")
        report = Report(agent, payload, key, due, content, taken_at, places=places)
        known = self._waiting.get(report.which)
        if known is not None:
            if known.payload.key == payload.key and not outcome.goes_on(known.payload, payload):
                report.payload, report.key, report.due = known.payload, known.key, known.due
            if content is not None:
                self._bytes[agent.name] -= len(known.content or b"")
            report.take_over(known)
        self._waiting[report.which] = report
        self._wake()

    def take(self, most: int) -> list[Report]:
        """Some of those that are due; each is then ended by :meth:`done` or :meth:`again`. Their
        results are compared and stored together, so these are few bytes.
        """
        now, size = self._clock.monotonic(), 0
        taken = list[Report]()
        for one in self._waiting.values():
            if one.due <= now and one.which not in self._busy:
                size += len(one.content or b"")
                if len(taken) == most or (taken and size > _MAX_BYTES):
                    break
                taken.append(one)
        for one in taken:
            self._busy[one.which] = self._waiting.pop(one.which)
        return taken

    def until_next_s(self) -> float:
        """Until one is due."""
        due = (one.due for one in self._waiting.values() if one.which not in self._busy)
        return max(0.0, min(due, default=math.inf) - self._clock.monotonic())

    def done(self, report: Report) -> None:
        """It was followed, or is not wanted any more."""
        if self._busy.get(report.which) is report:
            del self._busy[report.which]
            self._bytes[report.agent.name] -= len(report.content or b"")
            self._release(report.agent.name, report.places)
            if report.which in self._waiting:
                self._wake()

    def again(self, report: Report, delay_s: float) -> None:
        """It is to be looked at again, in its place a newer one as soon as there is one."""
        if self._busy.get(report.which) is not report:
            return
        del self._busy[report.which]
        newer = self._waiting.get(report.which)
        if newer is None:
            report.due = self._clock.monotonic() + delay_s
            self._waiting[report.which] = report
        else:
            if newer.content is not None:
                self._bytes[report.agent.name] -= len(report.content or b"")
            newer.take_over(report)
        self._wake()

    def __contains__(self, which: Which) -> bool:
        """Whether there is a report of the payload."""
        return which in self._waiting or which in self._busy

    def is_busy(self, report: Report) -> bool:
        """Whether it is being looked at, and was not forgotten."""
        return self._busy.get(report.which) is report

    def tries(self, which: Which) -> int:
        """How often what is known of a payload could not be followed."""
        report = self._waiting.get(which) or self._busy.get(which)
        return 0 if report is None else report.tries

    def ended(self) -> dict[AttemptKey, str]:
        """Attempts whose results are being fetched, with their agents. They need no slot there,
        though their jobs still hold one.
        """
        return {one.key: one.agent.name for one in self._busy.values() if one.fetching}

    def taken(self) -> set[AttemptKey]:
        """Attempts that an agent has taken, and that is about to be written."""
        return {
            one.key
            for reports in (self._waiting, self._busy)
            for one in reports.values()
            if one.taken_at is not None
        }

    def forget_agent(self, agent: str | None) -> set[Which]:
        """Forget the reports of the agent (None: of all); which these were."""
        forgotten = set[Which]()
        for reports in (self._waiting, self._busy):
            for which in [which for which in reports if agent in (None, which[0])]:
                report = reports.pop(which)
                self._bytes[which[0]] -= len(report.content or b"")
                self._release(which[0], report.places)
                forgotten.add(which)
        return forgotten

    def _release(self, agent: str, places: int) -> None:
        for _ in range(places):
            self._places[agent].release()
