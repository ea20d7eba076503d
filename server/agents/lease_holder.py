"""The leases of agents: this server uses the agents whose lease it holds, and no others.

Where several servers serve one store, each holds the leases of some agents, and takes over those of
a server that does not renew them any more. A server that was paused so long that another has taken
over stops its work with these agents as soon as it knows. Until then its requests are refused: by
the store, because each write names its lease, and by the agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import structlog

from server.agents.registry import Registry
from server.domain.leases import Lease, of_agent, of_server
from server.ports import Leases
from server.store.jobs import SqlJobs

log = structlog.get_logger()


_Follow: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class LeaseHolder:
    """Renews the leases, takes those that are free, and uses the agents whose lease is held.

    Args:
        stages: each cancels its work with an agent.
        resume: takes up what an earlier holder began.
        alone: no other server can be running, so leases of an earlier run are taken at once.
        on_change: called when there is something to do for the next sweep.
    """

    def __init__(
        self,
        leases: Leases,
        jobs: SqlJobs,
        registry: Registry,
        stages: Sequence[Callable[[str], Awaitable[None]]],
        resume: Callable[[], Awaitable[None]],
        *,
        alone: bool,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._leases, self._jobs, self._registry = leases, jobs, registry
        self._stages, self._resume, self._alone = stages, resume, alone
        self._followers: Mapping[str, _Follow] = {}
        """By agent of the settings: follows it until it is cancelled."""
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self._held: dict[str, Lease] = {}
        """Name -> lease, that of this server itself included."""
        self._following: dict[str, asyncio.Task[None]] = {}

    async def run_once(self) -> int:
        """One sweep; returns how many leases were taken or lost."""
        async with self._lock:
            return await self._sweep()

    async def use(
        self,
        followers: Callable[[], Awaitable[Mapping[str, _Follow]]],
        give_back: Sequence[str] = (),
    ) -> None:
        """Follow other agents from now on. The lease of an agent that is not followed any more is
        kept while it has jobs.

        Args:
            followers: awaited while no lease is taken; by agent, follows it until it is cancelled.
            give_back: agents with which all work is ended first. Their leases are given up, and the
                next sweep takes them again, with higher tokens.
        """
        async with self._lock:
            try:
                held = [self._held[name] for name in map(of_agent, give_back) if name in self._held]
                # First: what was claimed under a lease is known to the stages when they stop.
                await self._leases.give_back([lease.name for lease in held])
                for lease in held:
                    await self._drop(lease, f"agent {lease.agent} is connected again")
                self._followers = await followers()
                gone = self._following.keys() - self._followers.keys()
                await self._end([self._following.pop(agent) for agent in gone])
            finally:
                self._on_change()

    async def _sweep(self) -> int:
        renewed = {lease.name: lease for lease in await self._leases.renew()} if self._held else {}
        lost = [lease for lease in self._held.values() if renewed.get(lease.name) != lease]
        for lease in lost:
            if lease.name != of_server(lease.owner):
                log.warning("lease.lost", agent=lease.agent, lease=lease.token)
            await self._drop(lease, f"another server uses agent {lease.agent}")
        taken = await self._acquire()
        for lease in taken:
            self._take(lease)
        self._follow()
        if any(lease.name != of_server(lease.owner) for lease in taken):
            await self._resume()
        return len(lost) + len(taken)

    async def stop(self) -> None:
        """Cancel the followers. The leases are kept: stages may still have to write."""
        await self._end(list(self._following.values()))
        self._following.clear()

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _acquire(self) -> list[Lease]:
        """Those of agents that are in the settings or have jobs, and our own."""
        agents = {one.agent for one in await self._jobs.held() if one.agent}
        names = [of_agent(agent) for agent in sorted(agents | self._followers.keys())]
        names.append(of_server(self._leases.owner))
        unused = [lease for name, lease in self._held.items() if name not in names]
        await self._leases.give_back([lease.name for lease in unused])
        for lease in unused:
            await self._drop(lease, f"agent {lease.agent} is not used")
        wanted = [name for name in names if name not in self._held]
        taken = await self._leases.acquire(wanted, alone=self._alone) if wanted else []
        for name in set(wanted) - {lease.name for lease in taken}:
            agent = Lease(name, "", 0).agent
            self._registry.give_up(agent, f"another server uses agent {agent}")
        return taken

    def _take(self, lease: Lease) -> None:
        self._held[lease.name] = lease
        if lease.name == of_server(lease.owner):
            return
        log.info("lease.taken", agent=lease.agent, lease=lease.token)
        self._registry.take(lease)

    def _follow(self) -> None:
        """Whoever can be followed, and is not yet."""
        for agent, follow in self._followers.items():
            if of_agent(agent) in self._held and agent not in self._following:
                self._following[agent] = asyncio.create_task(follow())

    async def _drop(self, lease: Lease, why: str) -> None:
        del self._held[lease.name]
        if lease.name == of_server(lease.owner):
            return
        self._registry.give_up(lease.agent, why)
        if lease.agent in self._following:
            await self._end([self._following.pop(lease.agent)])
        for stop in self._stages:
            await stop(lease.agent)
