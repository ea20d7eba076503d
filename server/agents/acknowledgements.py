"""Acknowledgements to one agent: they go with the next request that can carry them, or by
themselves after a short time without one.

Nobody waits for them: the agent only keeps for so long what it may delete. Those that are lost,
with a request or with this process, are sent again when the agent's list is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from server.ports import RefusedByAgent
from shared.clock import Clock, wait_for
from shared.wire import PayloadRef

MAX_WAIT_S: Final = 0.2
"""After the first of them that waits."""
SEND_AT_ONCE_FROM: Final = 100
"""So many that wait go at once."""
MAX_IN_REQUEST: Final = 200
"""In one request."""

Waiting: TypeAlias = tuple[PayloadRef, asyncio.Future[None]]
Send: TypeAlias = Callable[[Sequence[PayloadRef]], Awaitable[Sequence[Exception | None]]]


class Acknowledgements:
    """Those of one agent.

    Args:
        send: sends some by themselves; returns for each what its caller is to get raised.
    """

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send, self._clock = send, clock
        self._waiting: list[Waiting] = []
        self._enough = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, ref: PayloadRef) -> None:
        """Return when the agent has it. Raises AgentError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ref, future))
        if len(self._waiting) >= SEND_AT_ONCE_FROM:
            self._enough.set()
        self._start()
        await future

    def take(self) -> list[Waiting]:
        """Some that wait, for a request that carries them; to be followed by :meth:`answered` or
        :meth:`put_back`."""
        taken = [one for one in self._waiting[:MAX_IN_REQUEST] if not one[1].done()]
        del self._waiting[:MAX_IN_REQUEST]
        return taken

    def put_back(self, taken: Sequence[Waiting]) -> None:
        """The request did not get there, or cannot carry any: they go by themselves. It does no
        harm if the agent has had them."""
        if taken:
            self._waiting[:0] = taken
            self._enough.set()
            self._start()

    def answered(self, taken: Sequence[Waiting], refused: Mapping[int, str]) -> None:
        """Args:
        refused: payload -> code of why it is kept.
        """
        _answer(taken, [of_code(ref, refused.get(ref.id)) for ref, _ in taken])

    def _start(self) -> None:
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_those_left())

    async def _send_those_left(self) -> None:
        try:
            while self._waiting:
                await wait_for(self._enough, MAX_WAIT_S, self._clock)
                self._enough.clear()
                if taken := self.take():
                    await self._send_some(taken)
        finally:
            # In the step in which nothing was found to wait: what comes next starts a new task.
            self._sending = None

    async def _send_some(self, taken: Sequence[Waiting]) -> None:
        problems: Sequence[Exception | None]
        try:
            problems = await self._send([ref for ref, _ in taken])
        except Exception as problem:  # noqa: BLE001 - handed to whoever called
            problems = [problem] * len(taken)
        _answer(taken, problems)


def _answer(taken: Sequence[Waiting], problems: Sequence[Exception | None]) -> None:
    for (_, future), problem in zip(taken, problems, strict=True):
        if future.done():
            continue
        if problem is None:
            future.set_result(None)
        else:
            future.set_exception(problem)


def of_code(ref: PayloadRef, code: str | None) -> RefusedByAgent | None:
    """What an agent's word on one acknowledgement means; None: it needs no more."""
    if code in (None, "", "payload_not_found"):
        return None
    return RefusedByAgent(str(code)[:64], f"payload {ref.id} is kept: {code}", final=False)
