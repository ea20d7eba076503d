"""``PERTURB=SEED pytest ...``: other interleavings of threads, event loop and HTTP than a quiet
machine shows.

Some functions are slow in a whole test, others now and then: both are chosen by the seed and the
test's name. So a test that takes for ordered what is not ordered fails with some seed, and fails
again with that seed. Programs that a test forks are slow too, those that it starts afresh are not.
"""

import asyncio
import functools
import os
import time
from asyncio import BaseEventLoop
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random  # noqa: TID251  # seeded
from typing import Any, Final, TypeVar
from unittest import mock

import aiohttp
import aiosqlite
import pytest
from aiohttp import web
from yarl import URL

T = TypeVar("T")
ALWAYS_SLOW: Final = 0.2
"""Share of the functions that are slow at each call."""
NOW_AND_THEN: Final = 0.05
"""Share of the calls of the others that are slow."""
LOOP_TURNS: Final = 0.01
"""Share of the loop's turns before which its thread does not run."""
MOST_S: Final = 0.03
TOTAL_S: Final = 3.0
"""A test is held up for this long in all, then no more: it still has to end in time."""


class Perturbed:
    """The plugin: patches what runs work at its start, and chooses again for each test."""

    def __init__(self, seed: str) -> None:
        self._seed, self._test = seed, ""
        self._random = Random(seed)
        self._slow: dict[str, bool] = {}
        self._left = 0.0
        self._patch_threads()
        self._patch_loop()
        self._patch_http()
        os.register_at_fork(after_in_child=self._begin)

    def pytest_report_header(self) -> str:
        return f"perturbed: PERTURB={self._seed}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._test = item.nodeid
        self._begin()
        try:
            return (yield)
        finally:
            self._left = 0.0

    def _begin(self) -> None:
        self._random.seed(f"{self._seed} {self._test}")
        self._slow, self._left = {}, TOTAL_S

    def delay(self, name: str) -> float:
        """Seconds that this call is held up; mostly none."""
        if self._left <= 0:
            return 0.0
        if name not in self._slow:
            # not from the sequence: that of another run differs as soon as a thread is faster
            choice = Random(f"{self._seed} {self._test} {name}")
            self._slow[name] = choice.random() < ALWAYS_SLOW
        if not self._slow[name] and self._random.random() >= NOW_AND_THEN:
            return 0.0
        return self._take()

    def _take(self) -> float:
        seconds = self._random.uniform(0.001, MOST_S)
        self._left -= seconds
        return seconds

    def _in_thread(self, work: Callable[..., T]) -> Callable[..., T]:
        """Work that starts late, and whose end is known late."""
        name = _name(work)

        def held_up(*args: Any, **kwargs: Any) -> T:
            self._hold(f"before {name}")
            try:
                return work(*args, **kwargs)
            finally:
                self._hold(f"after {name}")

        return held_up

    def _hold(self, name: str) -> None:
        if seconds := self.delay(name):
            time.sleep(seconds)  # noqa: TID251

    async def _hold_task(self, name: str) -> None:
        if seconds := self.delay(name):
            await asyncio.sleep(seconds)  # noqa: TID251

    def _patch_threads(self) -> None:
        submit = ThreadPoolExecutor.submit
        execute: Callable[..., Awaitable[Any]] = vars(aiosqlite.Connection)["_execute"]

        def late_submit(
            pool: ThreadPoolExecutor, work: Callable[..., T], /, *args: Any, **kwargs: Any
        ) -> Future[T]:
            return submit(pool, self._in_thread(work), *args, **kwargs)

        async def late_execute(
            connection: aiosqlite.Connection, work: Callable[..., Any], *args: Any, **kwargs: Any
        ) -> Any:
            late = self._in_thread(work)
            return await execute(connection, late, *args, **kwargs)

        mock.patch.object(ThreadPoolExecutor, "submit", late_submit).start()
        mock.patch.object(aiosqlite.Connection, "_execute", late_execute).start()

    def _patch_loop(self) -> None:
        """Other threads and processes get further than the loop."""
        once: Callable[[BaseEventLoop], None] = vars(BaseEventLoop)["_run_once"]

        def late_once(loop: BaseEventLoop) -> None:
            if self._left > 0 and self._random.random() < LOOP_TURNS:
                time.sleep(self._take())  # noqa: TID251
            once(loop)

        mock.patch.object(BaseEventLoop, "_run_once", late_once).start()

    def _patch_http(self) -> None:
        """Requests that are sent late, answers, and what follows in a program on an answer."""
        request, prepare = aiohttp.ClientSession._request, web.StreamResponse.prepare
        write_eof = web.StreamResponse.write_eof

        async def late_request(
            session: aiohttp.ClientSession, method: str, url: Any, **how: Any
        ) -> aiohttp.ClientResponse:
            await self._hold_task(f"request {method} {URL(url).path}")
            return await request(session, method, url, **how)

        async def late_prepare(response: web.StreamResponse, to: web.BaseRequest) -> Any:
            await self._hold_task(f"answer {to.method} {to.path}")
            return await prepare(response, to)

        async def late_after(response: web.StreamResponse, data: bytes = b"") -> None:
            to = response._req
            await write_eof(response, data)
            if to is not None:
                await self._hold_task(f"after {to.method} {to.path}")

        mock.patch.object(aiohttp.ClientSession, "_request", late_request).start()
        mock.patch.multiple(web.StreamResponse, prepare=late_prepare, write_eof=late_after).start()


def _name(work: Any) -> str:
    """Of the function that a thread is to run: ``asyncio.to_thread`` makes a partial of
    ``Context.run`` and the function.
    """
    while isinstance(work, functools.partial):
        inner = getattr(work.func, "__name__", "") == "run" and work.args
        work = work.args[0] if inner else work.func
    return str(getattr(work, "__qualname__", type(work).__qualname__))
