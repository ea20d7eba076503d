"""Calls that come while others are under way are made together.

A call that comes alone is made at once, so nothing waits for company: groups form only where there
is more to do than is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from shared.clock import Clock

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Together(Generic[Item, Answer]):
    """Makes calls in groups.

    Args:
        work: makes the calls of some items; returns for each, in their order, its answer or what
            its caller is to get raised. What it raises itself, all of them get. It is cancelled
            when every caller was.
        at_once: how many groups are under way at once.
        most: items of one group.
        size: of an item, and
        most_size: of the items of a group together, unless there is one only.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        at_once: int,
        most: int,
        size: Callable[[Item], int] = lambda item: 0,
        most_size: int = 0,
    ) -> None:
        self._work, self._at_once, self._most = work, at_once, most
        self._size, self._most_size = size, most_size
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running, self._is_due = 0, False
        self._tasks = set[asyncio.Task[None]]()
        """Kept here, because the event loop keeps no reference to them."""

    async def __call__(self, item: Item) -> Answer:
        """The answer for the item. Raises what ``work`` raises or returns for it."""
        future = self._add(item)
        self._start()
        return await future

    async def along(self, item: Item, within_s: float, enough: int, clock: Clock) -> Answer:
        """As a call, of an item that waits for others to go along with: so many seconds at most,
        and no more once there are ``enough`` that wait.
        """
        future = self._add(item)
        if len(self._waiting) >= enough:
            self._start()
        elif not self._is_due:
            self._is_due = True
            self._keep(self._start_after(within_s, clock))
        return await future

    def _add(self, item: Item) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        return future

    async def _start_after(self, seconds: float, clock: Clock) -> None:
        try:
            await clock.sleep(seconds)
        finally:
            self._is_due = False
        self._start()

    def _start(self) -> None:
        if self._running < self._at_once:
            self._running += 1
            self._keep(self._run())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while group := self._next():
                await self._run_group(group)
        finally:
            # In the step in which nothing was found to wait: what comes next starts a new group.
            self._running -= 1

    async def _run_group(self, group: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        work = asyncio.ensure_future(self._make(group))
        left = len(group)

        def gone(future: asyncio.Future[Answer]) -> None:
            nonlocal left
            left -= future.cancelled()
            if not left:
                work.cancel()

        for _, future in group:
            future.add_done_callback(gone)
        try:
            await asyncio.wait([work])
        finally:
            work.cancel()

    async def _make(self, group: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._work([item for item, _ in group])
        except Exception as problem:  # noqa: BLE001 - handed to whoever called
            answers = [problem] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _next(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        """Some of those that wait, in their order, without those whose caller is gone."""
        group: list[tuple[Item, asyncio.Future[Answer]]] = []
        size = taken = 0
        for item, future in self._waiting:
            size += 0 if future.done() else self._size(item)
            if len(group) == self._most or (group and size > self._most_size):
                break
            taken += 1
            if not future.done():
                group.append((item, future))
        del self._waiting[:taken]
        return group
