"""Workspaces that were prepared ahead of their jobs: made, and started up to the closed gate.

Most of a start is over when its job arrives. A prepared workspace belongs to nobody before it is
taken, is used for one job, and has a uid of its own. It is made when a second job of the same kind
started soon after another, and removed when none has taken it for a minute. Its gate ends with the
agent, like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import structlog

from client_agent.sandbox.base import Ahead, SandboxBroken
from shared.clock import Clock
from shared.wire import Limits

log: structlog.stdlib.BoundLogger = structlog.get_logger()

LIFETIME_S: Final = 60.0


class Prepared(Protocol):
    """A workspace whose start has begun."""

    name: str
    uid: int | None

    @property
    def usable(self) -> bool:
        """Whether it is as good as one that is made now."""

    async def destroy(self) -> None: ...


P = TypeVar("P", bound=Prepared)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Unit(Generic[P]):
    workspace: P
    kind: Hashable
    made_at: float


class PreparedStarts(Generic[P]):
    """The prepared workspaces of one agent.

    Args:
        make: makes a workspace of a name and a uid, and begins its start.
        most: so many at once.
        uids: of which each has one; empty: all have the agent's.
    """

    def __init__(
        self,
        make: Callable[[str, int | None, Limits, Ahead], Awaitable[P]],
        clock: Clock,
        most: int,
        uids: Sequence[int] = (),
    ) -> None:
        self._make, self._clock, self._most = make, clock, most
        self._free_uids, self._separate_uids = list(uids), bool(uids)
        self._units: list[_Unit[P]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._making = 0
        self._started = 0
        """Jobs."""
        self._last: dict[Hashable, int] = {}
        """Kinds of those that started lately -> the number of the last one."""
        self._serial = 0
        self._expiring = False

    def take(self, limits: Limits, ahead: Ahead) -> P | None:
        """A prepared workspace of this kind; nobody else gets it."""
        kind = _kind(limits, ahead)
        for unit in [unit for unit in self._units if unit.kind == kind]:
            self._units.remove(unit)
            if unit.workspace.usable:
                return unit.workspace
            self._discard(unit)
        return None

    def refill(self, limits: Limits, ahead: Ahead) -> None:
        """A job of this kind started: prepare a workspace for the next one, if another of its kind
        was among the last jobs. It takes the place of one whose kind has not come since then: with
        more kinds than places, the others keep theirs.
        """
        kind = _kind(limits, ahead)
        self._started += 1
        before, self._last[kind] = self._last.get(kind), self._started
        oldest = self._started - 2 * self._most
        self._last = {one: number for one, number in self._last.items() if number >= oldest}
        if before is None or before < oldest:
            return
        if len(self._units) + self._making >= self._most:
            last = self._last.get
            other = next((unit for unit in self._units if last(unit.kind, 0) < before), None)
            if other is None:
                return
            self._units.remove(other)
            self._discard(other)
        if self._separate_uids and not self._free_uids:
            return
        # now: another call may come before the task begins
        uid = self._free_uids.pop(0) if self._separate_uids else None
        self._making += 1
        self._run(self._add(limits, ahead, uid))

    def release(self, uid: int | None) -> None:
        """The workspace of that uid is removed, and its processes are dead."""
        if uid is not None:
            self._free_uids.append(uid)

    async def make_room(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call ``make``. If it fails, once more without what nobody took: that may have what was
        short, such as the last loop device."""
        try:
            return await make()
        except (SandboxBroken, OSError):
            if not await self._give_up():
                raise
        return await make()

    async def close(self) -> None:
        """Remove what nobody took."""
        self._most = 0
        while self._tasks or self._units:
            self._discard_all()
            for task in self._tasks:
                if task.get_name() == _WAITS:
                    task.cancel()
            await asyncio.wait(self._tasks)

    async def _add(self, limits: Limits, ahead: Ahead, uid: int | None) -> None:
        self._serial += 1
        try:
            workspace = await self._make(f"ahead-{self._serial}", uid, limits, ahead)
        except (SandboxBroken, OSError) as problem:  # the next job has it, too, and says so
            self.release(uid)
            log.debug("sandbox.not_prepared", error=str(problem))
            return
        finally:
            self._making -= 1
        self._units.append(_Unit(workspace, _kind(limits, ahead), self._clock.monotonic()))
        if not self._expiring:
            self._expiring = True
            self._run(self._expire(), _WAITS)

    async def _expire(self) -> None:
        """Remove each when its time is over, until there is none."""
        try:
            while self._units:
                oldest = self._units[0]
                left = oldest.made_at + LIFETIME_S - self._clock.monotonic()
                if left > 0:
                    await self._clock.sleep(left)
                elif oldest in self._units:
                    self._units.remove(oldest)
                    self._discard(oldest)
        finally:
            self._expiring = False

    async def _give_up(self) -> bool:
        """Whether there was any."""
        had = False
        while True:
            self._discard_all()
            ends = [task for task in self._tasks if task.get_name() != _WAITS]
            if not ends:
                return had
            had = True
            await asyncio.wait(ends)

    def _discard_all(self) -> None:
        for unit in self._units:
            self._discard(unit)
        self._units.clear()

    def _discard(self, unit: _Unit[P]) -> None:
        self._run(unit.workspace.destroy())

    def _run(self, work: Awaitable[None], name: str = "prepared start") -> None:
        async def logged() -> None:
            try:
                await work
            except Exception:
                log.exception("sandbox.preparing_failed")

        task = asyncio.create_task(logged(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_WAITS: Final = "prepared starts expire"


def _kind(limits: Limits, ahead: Ahead) -> Hashable:
    """The same for all launches that one start can serve. Variables come later."""
    grant = ahead.grant
    given = grant.read_only, grant.network, grant.allow, grant.scratch
    return limits, tuple(ahead.argv), ahead.timeout_s, *given
