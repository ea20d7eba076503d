"""The event stream: the latest document of each payload that changed, in the order of changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Final

from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import BATCH, Payloads
from shared.clock import Clock, wait_for
from shared.wire import AgentEvent, AgentStatus, PayloadDoc, PayloadState

HEARTBEAT_S: Final = 1.0
"""Between two lines that say how the agent is."""
_PIECE: Final = 1 << 18


async def event_lines(
    payloads: Payloads,
    outputs: LiveOutputs,
    clock: Clock,
    after: int,
    server: str | None,
    status: Callable[[], AgentStatus],
) -> AsyncGenerator[bytes, None]:
    """Lines of :class:`shared.wire.AgentEvent`, from the change after number ``after`` on.

    Of several changes of one payload a slow reader gets only the latest; of a payload that has not
    started it gets none, because it got that as the answer to its order. While it runs, a payload
    is sent again whenever its live values are reported, under the number before. A line without a
    payload says up to which number everything was sent, and how the agent is: it comes once the
    stream has caught up, and then each second. The stream ends when the agent stops.

    Args:
        after: what the reader has seen. If this agent has not reached that number (its data was
            lost), the stream starts from 0.
        server: only payloads of that server.
        status: says how the agent is now.
    """
    if after > payloads.seq:
        after = 0
    caught_up, seen = False, -1
    reported, due = 0, 0.0
    with payloads.wakeups.of() as changed:
        while True:
            changed.clear()
            closing, reached = payloads.wakeups.closing, payloads.seq
            if reached > seen:
                batch = await payloads.changed_after(after, server, BATCH)
                if batch:
                    after = batch[-1].changed
                    news = (one for one in batch if not _is_known(one))
                    for lines in _together(_line(one.changed, outputs.doc(one)) for one in news):
                        yield lines
                if len(batch) == BATCH:
                    continue
                after = max(after, reached)  # every change up to that number was read
                seen = reached
            if not caught_up:
                caught_up, due = True, clock.monotonic() + HEARTBEAT_S
                yield _line(after, status=status())
            latest = outputs.reports
            for payload_id in outputs.reported_after(reported):
                report = outputs.report(payload_id, server)
                if report is not None:
                    yield _line(after, report)
            reported = latest
            if closing:
                return
            if payloads.wakeups.closing:
                continue
            rest_s = due - clock.monotonic()
            if rest_s <= 0 or not await wait_for(changed, rest_s, clock):
                due = clock.monotonic() + HEARTBEAT_S
                yield _line(after, status=status())


def _is_known(payload: Payload) -> bool:
    return payload.state is PayloadState.PREPARED and payload.server is not None


def _together(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, joined to pieces of limited size."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def _line(seq: int, payload: PayloadDoc | None = None, status: AgentStatus | None = None) -> bytes:
    event = AgentEvent(seq=seq, payload=payload, status=status)
    return event.model_dump_json().encode() + b"\n"
