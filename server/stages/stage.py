"""What the stages have in common."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator, Mapping
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import structlog

from server.agents.registry import Registry
from server.domain.jobs import Job, Move
from server.domain.retry import Uniform
from server.domain.service import Service
from server.measures import Measures
from server.settings.load import LiveSettings
from server.stages.wakeups import JobWakeups
from server.storage.contents import Contents
from server.storage.folder import Storage
from server.storage.scratch import Scratch
from server.store import batches, bundles, jobs, requests
from shared.clock import RANDOM, Clock, Micros
from shared.sql import Tx
from shared.sqlite.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger()
MOVED_AT_ONCE: Final = 100
Found = TypeVar("Found")
Key = TypeVar("Key", bound=Hashable)
Args = ParamSpec("Args")
_Request = Callable[[Tx, int, Micros, str], tuple[Job, bool]]
Decision = TypeVar("Decision", Move, Move | None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Core:
    """What every part of the server works with.

    Attributes:
        registry: the agents, as they are now.
        wakeups: of the loops, and of requests that wait for a job.
        uniform: random numbers for the delays of retries.
        measures: what is counted, for ``/metrics``.
    """

    settings: LiveSettings
    database: Database
    clock: Clock
    storage: Storage
    scratch: Scratch
    registry: Registry
    services: Mapping[str, Service]
    wakeups: JobWakeups
    uniform: Uniform = RANDOM.uniform
    measures: Measures = dataclasses.field(default_factory=Measures)

    @functools.cached_property
    def contents(self) -> Contents:
        """Stored bundles and results."""
        return Contents(
            self.storage, self.scratch, lambda name: self.database.read(bundles.content, name)
        )


class Stage:
    """Base of the stages."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def _service(self, name: str) -> Service:
        """The service as it is in the settings; one that is not there has the defaults."""
        service = self.core.services.get(name)
        return Service(name) if service is None else service

    def _decide(
        self,
        rule: Callable[Concatenate[Job, Service, Micros, Args], Decision],
        job: Job,
        *args: Args.args,
        **more: Args.kwargs,
    ) -> Decision:
        """What a rule of :mod:`server.domain` says of the job now."""
        return rule(job, self._service(job.service), self.core.clock.now(), *args, **more)

    async def _move_some(
        self, find: Callable[[Tx], Collection[Found]], rule: Callable[[Found], Move]
    ) -> int:
        """Make the moves that a rule decides on for what a query finds, which is to find some only:
        uploads and ends get in between. How many were made.
        """
        if not await self.core.database.read(find):  # the writer is everybody's
            return 0
        return await self.core.database.write(jobs.change_all, find, rule)

    async def _request_cancel(
        self, job_id: int, at: Micros, by: str = "", store: _Request = requests.request_cancel
    ) -> Job:
        """Store that the job is to be cancelled, unless it has ended, and so are all its children:
        those that wait at once. Raises NoSuchJob and what ``store`` raises. ``by``: who asked for
        it; the event says so.
        """
        job, is_new = await self.core.database.write(store, job_id, at, by)
        if is_new and job.deferred:
            await self._cancel_children(job_id, at)
        return job

    async def _cancel_children(self, parent_id: int, at: Micros) -> None:
        """Cancel the queued children, and request the cancel of the others, some in each
        transaction.
        """
        while await self.core.database.write(batches.cancel_children, parent_id, at):
            pass


class AgentTasks(Generic[Key]):
    """Tasks for agents, one for each key. Those of an agent are cancelled when its connection is
    replaced. ``failed``: the event that is logged when one raises.
    """

    def __init__(self, failed: str) -> None:
        self._failed = failed
        self._tasks: dict[Key, tuple[str, asyncio.Task[None]]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._tasks

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tasks)

    def start(
        self, agent: str, key: Key, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        """Start a task for what the agent has, or will get; or the one that the key has already."""
        if key not in self._tasks:
            self._tasks[key] = (agent, asyncio.create_task(self._run(key, work)))
        return self._tasks[key][1]

    async def _run(self, key: Key, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:
            log.exception(self._failed, key=str(key))
        finally:
            del self._tasks[key]

    async def stop(self, agent: str | None = None) -> None:
        """Cancel the tasks of the agent (None: of all agents)."""
        stopped = {key: task for key, (name, task) in self._tasks.items() if agent in (None, name)}
        for task in stopped.values():
            task.cancel()
        await asyncio.gather(*stopped.values(), return_exceptions=True)
        for key, task in stopped.items():
            if key in self._tasks and self._tasks[key][1] is task:
                del self._tasks[key]  # it had not started
