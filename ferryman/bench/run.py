"""A run from its beginning to its end: the load, the waiting, the figures, the tidying up."""

from __future__ import annotations

import asyncio
from typing import Final, Literal, Protocol

from ferryman.bench import measures
from ferryman.bench.document import BenchDoc, Sample
from ferryman.bench.load import Load
from ferryman.bench.plan import Plan
from ferryman.bench.samples import Sampler, ended
from ferryman.bench.verdict import verdicts
from ferryman.client import Client
from ferryman.clock import Clock, wall_clock
from ferryman.errors import FerrymanError, TryLater, Unreachable
from ferryman.states import JobState
from ferryman.units import say_count

_UNENDED: Final = (
    *(JobState.QUEUED, JobState.PROCESSING, JobState.SUBMITTED),
    *(JobState.RUNNING, JobState.UNKNOWN),
)
_LOOK_EVERY_S: Final = 0.5

End = Literal["complete", "interrupted", "server_away", "patience"]


class Progress(Protocol):
    """Shows how far a run is."""

    def say(self, text: str) -> None:
        """Show a message."""

    def say_sample(self, sample: Sample, sent: int) -> None:
        """Show, perhaps, how the server is, and how many uploads there were."""


class Run:
    """One run.

    Args:
        client: for uploads: ``retry_for=0``.
        watcher: for all else.
        tag: which its jobs get; no other job may have it.
        version: of this client.
        to: is called with how far it is.
    """

    def __init__(
        self,
        client: Client,
        watcher: Client,
        plan: Plan,
        tag: str,
        clock: Clock,
        version: str,
        to: Progress,
    ) -> None:
        self._watcher, self._plan, self._tag = watcher, plan, tag
        self._clock, self._say, self._version_here = clock, to.say, version
        self._load = Load(client, watcher, plan, tag, clock)
        self._sampler = Sampler(watcher, self._load, plan.services, clock, to.say_sample)
        self.made_jobs = False

    async def result(self) -> BenchDoc:
        """Put the load on the server, wait for its jobs, and say what became of them.

        Ctrl-C ends the load; then this returns what there is. A second one ends this.

        Raises:
            NotFound: there is no such service.
            Refused: the server takes none of the jobs.
        """
        for name in self._plan.services:
            await self._watcher.service(name)
        version = await self._version()
        begun_at = wall_clock()
        sampling = asyncio.create_task(self._sampler.run())
        try:
            end = await self._loaded()
        finally:
            await ended(sampling)
            self.made_jobs = any(one.job_id is not None for one in self._load.records) or bool(
                self._load.records and self._load.server_away
            )
        took_s = self._load.now()
        if end != "server_away" and not await self._learn():
            end = "server_away"
        return self._document(version, begun_at.isoformat(), end, took_s)

    async def _loaded(self) -> End:
        try:
            await self._load.run()
            if self._load.server_away:
                return "server_away"
            return await self._all_ended()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            self._say("interrupted: looking at what became of the jobs so far")
            return "interrupted"

    async def _version(self) -> str | None:
        try:
            return (await self._watcher.health()).version
        except TryLater:  # overloaded, but there: the figures will show it
            return None

    async def _all_ended(self) -> End:
        """Wait for the jobs that were accepted."""
        until = self._clock.monotonic() + self._plan.patience_s
        while True:
            try:
                if not await self._has_unended():
                    return "complete"
            except Unreachable:
                return "server_away"
            if self._clock.monotonic() >= until:
                return "patience"
            await self._clock.sleep(_LOOK_EVERY_S)

    async def _has_unended(self) -> bool:
        for state in _UNENDED:
            async for _ in self._watcher.jobs(tag=self._tag, state=state, limit=1):
                return True
        return False

    async def _learn(self) -> bool:
        """Ask what became of each job; False: the server could not be asked."""
        by_id = {one.job_id: one for one in self._load.records if one.job_id is not None}
        if not by_id:
            return True
        try:
            async for job in self._watcher.jobs(tag=self._tag):
                if job.id in by_id:
                    by_id[job.id].learn(job)
        except FerrymanError as problem:
            self._say(f"what became of the jobs is not known: {problem}")
            return False
        return True

    def _document(self, version: str | None, begun_at: str, end: End, took_s: float) -> BenchDoc:
        records = self._load.records
        listed, counted = measures.rows(records), measures.counts(records)
        found = measures.latencies(records)
        return BenchDoc.model_validate(
            {
                "version": self._version_here,
                "server_version": version,
                "url": self._watcher.url,
                "begun_at": begun_at,
                "tag": self._tag,
                "plan": self._plan.say(),
                "kinds": [f"{kind.weight:g}: {kind.say()}" for kind in self._plan.kinds],
                "end": end,
                "took_s": took_s,
                "counts": counted,
                "rates": measures.rates(counted, listed),
                "latencies": found,
                "verdicts": verdicts(listed, self._sampler.samples, found),
                "samples": self._sampler.samples,
                "uploads": listed,
            }
        )

    async def tidy(self) -> None:
        """Delete the jobs of the run; those that have not ended are cancelled first.

        Raises:
            FerrymanError: they cannot be.
        """
        mine = {"tag": self._tag}
        if await self._has_unended():
            async for _ in self._watcher.bulk("cancel", where=mine):
                pass
            await self._all_ended()
        items = [item async for item in self._watcher.bulk("delete", where=mine)]
        left = sum(item.code != "deleted" for item in items)
        self._say(f"{say_count(len(items) - left, 'job')} deleted" + (f", {left} not" * bool(left)))
