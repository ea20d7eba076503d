"""How the server is while the load runs, asked for once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ferryman.bench.document import Sample
from ferryman.bench.load import Load
from ferryman.client import Client
from ferryman.clock import Clock
from ferryman.errors import FerrymanError, NotAllowed, NotUnderstood
from ferryman.states import JobState

EVERY_S: Final = 1.0
MOST: Final = 600
"""Samples; a longer run has them less often."""
_CPU: Final = "process_cpu_seconds_total"
_MEMORY: Final = "process_resident_memory_bytes"
_LAG: Final = "ferryman_event_loop_lag_seconds"


def sums(text: str) -> dict[str, float]:
    """The metrics of a text for Prometheus, each the sum over its labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        if not name or line.startswith("#"):
            continue
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


class Sampler:
    """Asks the server how it is.

    Args:
        services: that the load uses.
        say: is called with each sample, and how many uploads there were.
    """

    def __init__(
        self,
        client: Client,
        load: Load,
        services: list[str],
        clock: Clock,
        say: Callable[[Sample, int], None],
    ) -> None:
        self._client, self._load, self._services, self._clock = client, load, services, clock
        self._say = say
        self._sees_agents = self._sees_metrics = True
        self._cpu: tuple[float, float] | None = None
        """When the CPU seconds of the server were asked for last, and what they were."""
        self._lag: tuple[float, float] | None = None
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        every = EVERY_S
        while True:
            try:
                self.samples.append(await self._sample())
            except FerrymanError:
                self.samples.append(Sample(at_s=self._load.now(), uploading=self._load.in_flight))
            self._say(self.samples[-1], len(self._load.records))
            if len(self.samples) >= MOST:
                del self.samples[1::2]
                every *= 2
            await self._clock.sleep(every)

    async def _sample(self) -> Sample:
        begun = self._load.now()
        services = [await self._client.service(name) for name in self._services]
        answer_s = (self._load.now() - begun) / max(1, len(services))
        found = Sample(
            at_s=begun,
            queued=sum(one.counts.get(JobState.QUEUED, 0) for one in services),
            in_work=sum(one.in_work for one in services),
            max_runs=sum(one.max_runs for one in services),
            uploading=self._load.in_flight,
            answer_s=answer_s,
        )
        found = await self._with_metrics(await self._with_agents(found))
        return found.model_copy(update={"waits_for": await self._waits_for(found.queued or 0)})

    async def _with_agents(self, found: Sample) -> Sample:
        if not self._sees_agents:
            return found
        try:
            agents = await self._client.agents()
        except NotAllowed:
            self._sees_agents = False
            return found
        up = [one for one in agents if one.up]
        return found.model_copy(
            update={
                "agents_up": len(up),
                "slots": sum(one.slots or 0 for one in up),
                "running": sum(one.running or 0 for one in agents),
            }
        )

    async def _with_metrics(self, found: Sample) -> Sample:
        if not self._sees_metrics:
            return found
        try:
            values = sums(await self._client.metrics())
        except (NotAllowed, NotUnderstood):
            self._sees_metrics = False
            return found
        now, cpu_s, before = self._load.now(), values.get(_CPU), self._cpu
        cpu = None
        if cpu_s is not None:
            self._cpu = (now, cpu_s)
            if before is not None and now > before[0]:
                cpu = max(0.0, (cpu_s - before[1]) / (now - before[0]))
        memory = values.get(_MEMORY)
        return found.model_copy(
            update={
                "cpu": cpu,
                "memory_bytes": None if memory is None else int(memory),
                "lag_s": self._lag_s(values),
            }
        )

    def _lag_s(self, values: dict[str, float]) -> float | None:
        """How late the event loop woke since the sample before, on average."""
        total, count = values.get(f"{_LAG}_sum"), values.get(f"{_LAG}_count")
        if total is None or count is None:
            return None
        before, self._lag = self._lag, (total, count)
        if before is None or count <= before[1]:
            return None
        return max(0.0, (total - before[0]) / (count - before[1]))

    async def _waits_for(self, queued: int) -> str | None:
        """Why one of the jobs waits that have waited longest."""
        accepted = [one.job_id for one in self._load.records if one.job_id is not None]
        if not queued or len(accepted) < queued:
            return None
        job = await self._client.status(accepted[-queued])
        return None if job.queue is None or job.queue.code is None else str(job.queue.code)


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel it and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
