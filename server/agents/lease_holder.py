"""The leases of agents: this server uses the agents whose lease it holds, and no others.

Where several servers serve one store, each holds the leases of some agents, and takes over those of
a server that does not renew them any more. A server that was paused so long that another has taken
over stops its work with these agents as soon as it knows. Until then its requests are refused: by
the store, because each write names its lease, and by the agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from server.agents.registry import Registry
from server.domain.leases import Lease, of_agent, of_server
from server.ports import Jobs, Leases

log = structlog.get_logger()


class LeaseHolder:
    """Renews the leases, takes those that are free, and uses the agents whose lease is held.

    Args:
        followers: by agent of the settings: follows it until it is cancelled.
        stages: each cancels its work with an agent.
        resume: takes up what an earlier holder began.
        alone: no other server can be running, so leases of an earlier run are taken at once.
    """

    def __init__(
        self,
        leases: Leases,
        jobs: Jobs,
        registry: Registry,
        followers: Mapping[str, Callable[[], Coroutine[Any, Any, None]]],
        stages: Sequence[Callable[[str], Awaitable[None]]],
        resume: Callable[[], Awaitable[None]],
        *,
        alone: bool,
    ) -> None:
        self._leases, self._jobs, self._registry = leases, jobs, registry
        self._followers, self._stages, self._resume = followers, stages, resume
        self._alone = alone
        self._held: dict[str, Lease] = {}
        """Name -> lease, that of this server itself included."""
        self._following: dict[str, asyncio.Task[None]] = {}

    async def run_once(self) -> int:
        """One sweep; returns how many leases were taken or lost."""
        renewed = {lease.name: lease for lease in await self._leases.renew()} if self._held else {}
        lost = [lease for lease in self._held.values() if renewed.get(lease.name) != lease]
        for lease in lost:
            await self._drop(lease)
        taken = await self._acquire()
        for lease in taken:
            self._take(lease)
        if any(lease.name != of_server(lease.owner) for lease in taken):
            await self._resume()
        return len(lost) + len(taken)

    async def stop(self) -> None:
        """Cancel the followers. The leases are kept: stages may still have to write."""
        for task in self._following.values():
            task.cancel()
        await asyncio.gather(*self._following.values(), return_exceptions=True)
        self._following.clear()

    async def _acquire(self) -> list[Lease]:
        """Those of agents that are in the settings or have jobs, and our own."""
        agents = {one.agent for one in await self._jobs.held() if one.agent}
        names = [of_agent(agent) for agent in sorted(agents | self._followers.keys())]
        names.append(of_server(self._leases.owner))
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
        log.info("lease.taken", agent=lease.agent, token=lease.token)
        self._registry.take(lease)
        if lease.agent in self._followers:
            follower = self._followers[lease.agent]
            self._following[lease.agent] = asyncio.create_task(follower())

    async def _drop(self, lease: Lease) -> None:
        del self._held[lease.name]
        if lease.name == of_server(lease.owner):
            return
        log.warning("lease.lost", agent=lease.agent, token=lease.token)
        self._registry.give_up(lease.agent, f"another server uses agent {lease.agent}")
        following = self._following.pop(lease.agent, None)
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        for stop in self._stages:
            await stop(lease.agent)
