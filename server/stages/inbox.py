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

_MAX_BYTES: Final = 8 << 20
"""Of one agent's reports, and of those that are taken at once. Then no more are read from it: an
agent that is faster than this server's disk costs no more memory than this."""
_REPORT_BYTES: Final = 8 << 10
"""Of a report with a short document and no result."""
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
        document_bytes: of the document.
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
    document_bytes: int = 0
    fetching: bool = False

    @property
    def which(self) -> Which:
        return self.agent.name, self.payload.id

    @property
    def size(self) -> int:
        """About as many as it takes in memory."""
        return _REPORT_BYTES + self.document_bytes + len(self.content or b"")

    @property
    def result(self) -> bytes | None:
        """The payload's result; None: it has not come, or not as announced."""
        announced, content = self.payload.result, self.content
        if content is None or announced is None or len(content) != announced.size:
            return None
        return content if hashlib.sha256(content).hexdigest() == announced.sha256 else None

    def take_over(self, earlier: Report) -> None:
        """What is known of the same attempt by an earlier report."""
        if self.key != earlier.key:  # an agent that lost its folder gives a number again
            return
        self.due = min(self.due, earlier.due)
        self.content = earlier.content if self.content is None else self.content
        self.taken_at = earlier.taken_at if self.taken_at is None else self.taken_at
        self.tries, self.failing_since = earlier.tries, earlier.failing_since


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
        self._bytes = Counter[str]()
        """agent -> of its reports"""
        self._room = asyncio.Event()
        """Set when there are fewer."""

    async def receive(
        self, agent: Agent, payload: PayloadDoc, content: bytes | None, size: int
    ) -> None:
        """As :meth:`put`; waits while too many of the agent's reports, or too large ones, are not
        followed yet. So an agent that reports without end fills its connection only.
        """
        while self._bytes[agent.name] >= _MAX_BYTES:
            self._room.clear()
            await self._room.wait()
        self.put(agent, payload, content, size=size)

    def put(
        self,
        agent: Agent,
        payload: PayloadDoc,
        content: bytes | None = None,
        taken_at: Micros | None = None,
        size: int = 0,
    ) -> None:
        """Add a report, unless it has no key: what polls an agent without keys adds one, and sees
        what becomes of the others. ``size``: bytes of the document.
        """
        if (key := AttemptKey.read(payload.key)) is None:
            return
        if self._bytes[agent.name] >= _MAX_BYTES:
            content = None  # of an agent that is polled; it is fetched in its turn
        due = self._clock.monotonic()
        if payload.status not in outcome.ENDED:
            due += self._delay_s
        report = Report(agent, payload, key, due, content, taken_at, document_bytes=size)
        known = self._waiting.get(report.which)
        if known is not None:
            self._free(known)
            if known.payload.key == payload.key and not outcome.goes_on(known.payload, payload):
                report.payload, report.key, report.due = known.payload, known.key, known.due
            report.take_over(known)
        self._waiting[report.which] = report
        self._bytes[agent.name] += report.size
        self._wake()

    def take(self, most: int) -> list[Report]:
        """Some of those that are due; each is then ended by :meth:`done` or :meth:`again`. Their
        results are compared and stored together, so these are few bytes.
        """
        now, size = self._clock.monotonic(), 0
        taken = list[Report]()
        for one in self._waiting.values():
            if one.due <= now and one.which not in self._busy:
                size += one.size
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
        if self.is_busy(report):
            self._free(self._busy.pop(report.which))
            if report.which in self._waiting:
                self._wake()

    def again(self, report: Report, delay_s: float) -> None:
        """It is to be looked at again, in its place a newer one as soon as there is one."""
        if not self.is_busy(report):
            return
        self._free(self._busy.pop(report.which))
        report.content = None  # it is fetched when it is tried again
        newer = self._waiting.get(report.which)
        if newer is None:
            report.due = self._clock.monotonic() + delay_s
            self._waiting[report.which] = report
            self._bytes[report.agent.name] += report.size
        else:
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
                self._free(reports.pop(which))
                forgotten.add(which)
        return forgotten

    def _free(self, report: Report) -> None:
        self._bytes[report.agent.name] -= report.size
        self._room.set()
