"""The event stream: the latest document of each payload that changed, in order of the changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from client_agent.payloads.store import BATCH, Payloads
from shared.clock import Clock, wait_for
from shared.wire import AgentEvent

KEEPALIVE_S: Final = 15.0


async def follow(
    payloads: Payloads, clock: Clock, after: int, server: str | None
) -> AsyncGenerator[bytes, None]:
    """Lines of :class:`shared.wire.AgentEvent`, from the change after number ``after`` on.

    Level-triggered: of several changes of one payload a slow reader sees only the latest. Once all
    is told, and whenever nothing is for a while, a line without a payload says how far that is.
    The stream ends when the agent does.

    Args:
        after: what the reader has seen. A number that this agent has not reached yet (its data was
            lost) starts over from 0.
        server: only payloads of that server.
    """
    if after > payloads.seq:
        after = 0
    caught_up = False
    with payloads.wakeups.of() as changed:
        while True:
            changed.clear()
            ending, reached = payloads.wakeups.closing, payloads.seq
            found = await payloads.changed_after(after, server, BATCH)
            if found:
                after = found[-1].changed
                events = (AgentEvent(seq=one.changed, payload=one.doc()) for one in found)
                yield b"".join(event.model_dump_json().encode() + b"\n" for event in events)
            if len(found) == BATCH:
                continue
            after = max(after, reached)  # everything up to there was looked at
            if not caught_up:
                caught_up = True
                yield _keepalive(after)
            if ending:
                return
            if not payloads.wakeups.closing and not await wait_for(changed, KEEPALIVE_S, clock):
                yield _keepalive(after)


def _keepalive(seq: int) -> bytes:
    return AgentEvent(seq=seq).model_dump_json().encode() + b"\n"
