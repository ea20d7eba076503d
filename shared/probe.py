"""A health check of something that may hang, such as a disk, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from shared import logs
from shared.clock import Clock, wait_for

INTERVAL_S: Final = 1.0
"""The check runs at most once in this time, however often its result is asked for."""
TIMEOUT_S: Final = 0.5
"""For the check to return; a check that takes longer is itself a problem."""

_SILENT: Final = " does not answer"


def is_silent(problem: str) -> bool:
    """Whether it is that a check does not return."""
    return problem.endswith(_SILENT)


class Probe:
    """Runs a check in a thread of its own, one at a time, and remembers its result.

    Args:
        what: is checked, for the message when the check does not return.
        check: runs in the thread; returns the problems, as sentences.
    """

    def __init__(self, what: str, check: Callable[[], Sequence[str]], clock: Clock) -> None:
        self._what, self._check, self._clock = what, check, clock
        self._problems: list[str] = []
        self._started_at = float("-inf")
        self._done: asyncio.Event | None = None

    async def problems(self) -> list[str]:
        """The problems, as of a second ago at most."""
        if self._done is None and self._clock.monotonic() >= self._started_at + INTERVAL_S:
            self._done = asyncio.Event()
            self._started_at = self._clock.monotonic()
            loop = asyncio.get_running_loop()
            # A thread of its own: a check that hangs blocks no pool, and not the program's end.
            threading.Thread(
                target=self._run, args=(loop, self._done), name="probe", daemon=True
            ).start()
        if self._done is not None and not await wait_for(self._done, TIMEOUT_S, self._clock):
            return [f"{self._what}{_SILENT}"]
        return self._problems

    def _run(self, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
        try:
            problems = list(self._check())
        except Exception as problem:  # noqa: BLE001 - a check that fails is a problem like others
            problems = [f"{self._what} cannot be checked: {problem}"]
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._finish, problems, done)

    def _finish(self, problems: list[str], done: asyncio.Event) -> None:
        self._problems, self._done = problems, None
        done.set()


PATIENCE_S: Final = 300.0
"""For one round, beside the time between rounds: a sweep over very many rows, a slow disk."""


@dataclass(slots=True)
class _Beat:
    at: float
    within_s: float


class Heartbeats:
    """When each loop went round last, successfully or not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._beats: dict[str, _Beat] = {}
        self._checks: dict[str, Callable[[], bool]] = {}

    def add(self, name: str, every_s: float) -> Callable[[], None]:
        """What a loop that goes round at least that often calls in each round."""
        beat = self._beats[name] = _Beat(self._clock.monotonic(), every_s + PATIENCE_S)

        def tick() -> None:
            beat.at = self._clock.monotonic()

        return tick

    def check(self, name: str, is_alive: Callable[[], bool]) -> None:
        """Count what says itself whether it is alive as a loop."""
        self._checks[name] = is_alive

    def stuck(self) -> list[str]:
        """Those that have not gone round for too long."""
        now = self._clock.monotonic()
        late = [name for name, beat in self._beats.items() if now - beat.at > beat.within_s]
        return late + [name for name, is_alive in self._checks.items() if not is_alive()]


log: structlog.stdlib.BoundLogger = structlog.get_logger()
LOOK_EVERY_S: Final = 7.0
_WANTED: Final = frozenset({"draining", "stopping"})


async def watch(
    look: Callable[[], Awaitable[Mapping[str, str]]], stop: asyncio.Event, clock: Clock
) -> None:
    """Until ``stop``.

    Args:
        look: why no new work is taken: code -> sentence.
    """
    before: list[str] = []
    while not await wait_for(stop, LOOK_EVERY_S, clock):
        logs.FOLDING.flush()
        try:
            found = {code: why for code, why in (await look()).items() if code not in _WANTED}
        except Exception:  # the next look may succeed
            log.exception("readiness.unknown")
            continue
        now = sorted(found)
        if now and now != before:
            log.error("readiness.lost", reasons=now, why="; ".join(found[code] for code in now))
        elif before and not now:
            log.info("readiness.regained", reasons=before)
        before = now
