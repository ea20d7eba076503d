"""The event stream: the latest document of each payload that changed, in the order of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import BATCH, Payloads
from client_agent.storage.folders import Folders
from shared.clock import Clock, wait_for
from shared.wire import AgentEvent, AgentStatus, PayloadDoc, PayloadState

HEARTBEAT_S: Final = 1.0
"""Between two lines that say how the agent is."""
MAX_RESULT: Final = 1 << 20
"""Bytes of a result that is sent behind its line, at most."""
_PIECE: Final = 1 << 18
"""Bytes of lines and results that are in memory at once; one may be larger."""
_LINE: Final = 1 << 10
"""About as long is a line."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader of the stream asks for."""

    after: int = 0
    """What it has seen. If this agent has not reached that number (its data was lost), the stream
    starts from 0."""
    server: str | None = None
    """Only payloads of that server."""
    results: int = 0
    """A result of at most so many bytes is sent behind the line of its payload's end."""
    quick_s: float = 0.0
    """That a payload runs is sent only when it has run for so long: what ends before is sent once,
    as ended."""


class EventStream:
    """Lines of :class:`shared.wire.AgentEvent` for one reader.

    Of several changes of one payload a slow reader gets only the latest; of a payload that has not
    started it gets none, because it got that as the answer to its order. While it runs, a payload
    is sent again whenever its live values are reported, under the number before. The number of a
    line is one up to which everything was sent. A line without a payload says that number, and how
    the agent is: it comes once the stream has caught up, and then each second. The stream ends when
    the agent stops.

    Args:
        status: says how the agent is now.
    """

    def __init__(
        self,
        payloads: Payloads,
        outputs: LiveOutputs,
        folders: Folders,
        clock: Clock,
        wanted: Wanted,
        status: Callable[[], AgentStatus],
    ) -> None:
        self._payloads, self._outputs, self._folders = payloads, outputs, folders
        self._clock, self._wanted, self._status = clock, wanted, status
        self._after = 0 if wanted.after > payloads.seq else wanted.after
        """Up to that number every change was read."""
        self._held: dict[int, tuple[float, Payload]] = {}
        """Payloads that run, in the order of changes -> when that is sent."""
        self._heartbeat_due = 0.0

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """One or several at a time, with the results that belong to them."""
        wakeups, caught_up, seen, reported = self._payloads.wakeups, False, -1, 0
        with wakeups.of() as changed:
            while True:
                changed.clear()
                closing, reached = wakeups.closing, self._payloads.seq
                if reached > seen:
                    batch = await self._payloads.changed_after(
                        self._after, self._wanted.server, BATCH
                    )
                    for some in _groups(self._news(batch), self._result_size):
                        yield await self._written(some)
                    if len(batch) == BATCH:
                        continue
                    self._after = max(self._after, reached)  # each change up to it was read
                    seen = reached
                for one in self._due(everything=closing):
                    yield self._line(self._outputs.doc(one), one.changed)
                if not caught_up:
                    caught_up = True
                    yield self._heartbeat()
                latest = self._outputs.reports
                for payload_id in self._outputs.reported_after(reported):
                    report = self._outputs.report(payload_id, self._wanted.server)
                    if report is not None:
                        self._held.pop(payload_id, None)  # this says it
                        yield self._line(report)
                reported = latest
                if closing:
                    return
                if wakeups.closing:
                    continue
                await wait_for(changed, self._rest_s(), self._clock)
                if self._clock.monotonic() >= self._heartbeat_due:
                    yield self._heartbeat()

    def _news(self, batch: Sequence[Payload]) -> Iterator[Payload]:
        """Those to be sent now."""
        for one in batch:
            self._after = one.changed
            self._held.pop(one.id, None)
            if one.state is PayloadState.PREPARED and one.server is not None:
                continue  # its server got that as the answer
            if one.state is PayloadState.RUNNING and self._wanted.quick_s:
                self._held[one.id] = (self._clock.monotonic() + self._wanted.quick_s, one)
                continue
            yield one

    def _due(self, *, everything: bool) -> list[Payload]:
        """What runs and is to be said now."""
        now, due = self._clock.monotonic(), []
        while self._held:
            payload_id, (at, one) = next(iter(self._held.items()))
            if at > now and not everything:
                break
            del self._held[payload_id]
            due.append(one)
        return due

    def _rest_s(self) -> float:
        due = self._heartbeat_due
        if self._held:
            due = min(due, next(iter(self._held.values()))[0])
        return max(0.0, due - self._clock.monotonic())

    def _result_size(self, one: Payload) -> int:
        """Bytes of the result that is sent with it; 0: none."""
        result = one.outcome.result if one.outcome is not None else None
        size = 0 if result is None or one.state is PayloadState.CLEANED else result.size
        return size if size <= min(self._wanted.results, MAX_RESULT) else 0

    async def _written(self, some: Sequence[Payload]) -> bytes:
        """Their lines, each with its result behind it."""
        wanted = {one.id: size for one in some if (size := self._result_size(one))}
        results = await self._payloads.results(wanted) if wanted else {}
        if files := wanted.keys() - results.keys():
            sizes = {one: wanted[one] for one in files}
            results |= await asyncio.to_thread(self._folders.read_results, sizes)
        written = []
        for one in some:
            result = results.get(one.id, b"")
            written.append(self._line(self._outputs.doc(one), one.changed, len(result)))
            written.append(result)
        return b"".join(written)

    def _heartbeat(self) -> bytes:
        self._heartbeat_due = self._clock.monotonic() + HEARTBEAT_S
        return self._line(status=self._status())

    def _line(
        self,
        payload: PayloadDoc | None = None,
        number: int | None = None,
        result_bytes: int = 0,
        status: AgentStatus | None = None,
    ) -> bytes:
        """Args:
        number: of the change; None: the latest that was read.
        """
        seq = self._after if number is None else number
        if self._held:
            _, held = next(iter(self._held.values()))
            seq = min(seq, held.changed - 1)
        event = AgentEvent(seq=seq, payload=payload, status=status, result_bytes=result_bytes)
        return event.model_dump_json().encode() + b"\n"


def _groups(
    payloads: Iterator[Payload], size: Callable[[Payload], int]
) -> Iterator[Sequence[Payload]]:
    """Payloads whose lines and results have a limited size together."""
    group: list[Payload] = []
    total = 0
    for one in payloads:
        total += _LINE + size(one)
        if group and total > _PIECE:
            yield group
            group, total = [], _LINE + size(one)
        group.append(one)
    if group:
        yield group
