"""The load generator while the server is slow, or an agent is silent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ferryman import Client
from ferryman.bench.document import Sample
from ferryman.bench.load import Load
from ferryman.bench.plan import Kind, Plan
from ferryman.bench.quantities import Spread
from ferryman.bench.samples import Sampler, ended
from ferryman.clock import RealClock
from ferryman.errors import FerrymanError
from tests.support.real_sandbox import turns

SMALL = Kind(Spread(1024, 1024), 1, Spread(0, 0), Spread(0, 0), "example", 1.0)
PLAN = Plan([SMALL], rate=100, duration_s=600, users=("ann",))


class Held:
    """A client whose uploads are answered when a test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def submit(self, *_: object, **__: object) -> Any:
        self.begun.set()
        await self.go_on.wait()
        return SimpleNamespace(id=17)

    async def service(self, _: str) -> Any:
        return SimpleNamespace(counts={}, in_work=1, max_runs=4)

    async def agents(self) -> Any:
        silent = SimpleNamespace(up=True, slots=4, running=None)
        return [silent, SimpleNamespace(up=True, slots=4, running=3)]

    async def metrics(self) -> str:
        raise FerrymanError("not now")


def load_of(client: Held) -> Load:
    here = cast(Client, client)
    return Load(here, here, PLAN, "bench-test", RealClock())


async def test_a_load_that_is_interrupted_waits_for_the_uploads_under_way() -> None:
    """The server makes jobs of them, which are deleted with the others."""
    client = Held()
    load = load_of(client)
    running = asyncio.create_task(load.run())
    await client.begun.wait()
    running.cancel()
    await turns(9)
    assert not running.done()
    client.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert {one.job_id for one in load.records} == {17}


async def test_interrupted_twice_it_waits_no_more() -> None:
    client = Held()
    load = load_of(client)
    running = asyncio.create_task(load.run())
    await client.begun.wait()
    for _ in range(2):
        running.cancel()
        await turns(9)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_agent_that_is_silent_does_not_end_the_samples() -> None:
    client, said = Held(), asyncio.Queue[Sample]()
    sampler = Sampler(
        cast(Client, client),
        load_of(client),
        ["example"],
        RealClock(),
        lambda sample, _: said.put_nowait(sample),
    )
    found = await sampler._with_agents(Sample(at_s=0.0))
    assert (found.agents_up, found.slots, found.running) == (2, 8, 3)
    sampling = asyncio.create_task(sampler.run())
    await said.get()
    assert not sampling.done()
    await ended(sampling)
