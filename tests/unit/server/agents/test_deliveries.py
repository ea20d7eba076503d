"""Attempts that share a bundle: it goes with the first of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from server.agents.deliveries import MISSING, Deliveries
from server.domain.jobs import Bundle, Job
from server.domain.service import Service
from server.ports import RefusedByAgent, Unreachable
from shared.wire import JobState, Limits, PayloadDoc, PayloadState

SERVICE = Service("example")


def child(number: int, digest: str = "d", file: str = "f") -> Job:
    return Job(
        id=number,
        user_id="ann",
        service="example",
        state=JobState.PROCESSING,
        limits=Limits(),
        timeout_s=1.0,
        created_at=0,
        queued_at=0,
        attempt=1,
        bundle=Bundle(file, 1, digest),
        parent_id=99,
    )


class Line:
    """The far end: what was asked of it, and what it answers."""

    def __init__(self) -> None:
        self.submits: list[tuple[int, bool]] = []
        self.orders: list[list[int]] = []
        self.problems: list[Exception] = []
        self.held = set[str]()
        self.deliveries = Deliveries(self.submit, self.order)

    async def submit(self, job: Job, _: Service, keep: bool) -> PayloadDoc:
        self.submits.append((job.id, keep))
        if self.problems:
            raise self.problems.pop(0)
        self.held.add(job.bundle.digest if job.bundle else "")
        return PayloadDoc(id=job.id, status=PayloadState.PREPARED)

    async def order(self, orders: Sequence[tuple[Job, Service]]) -> list[PayloadDoc | Exception]:
        self.orders.append([job.id for job, _ in orders])
        if self.problems:
            raise self.problems.pop(0)
        answers: list[PayloadDoc | Exception] = []
        for job, _ in orders:
            if job.bundle and job.bundle.digest in self.held:
                answers.append(PayloadDoc(id=job.id, status=PayloadState.PREPARED))
            else:
                answers.append(RefusedByAgent(MISSING, "not here", final=False))
        return answers

    async def send(self, *jobs: Job) -> list[int | str]:
        done = await asyncio.gather(
            *(self.deliveries.send(job, SERVICE) for job in jobs), return_exceptions=True
        )
        return [one.id if isinstance(one, PayloadDoc) else str(one) for one in done]


async def test_the_first_one_brings_the_bundle_and_the_others_are_one_request() -> None:
    line = Line()
    assert await line.send(*map(child, range(1, 6))) == [1, 2, 3, 4, 5]
    assert (line.submits, line.orders) == ([(1, True)], [[2, 3, 4, 5]])
    assert await line.send(child(6), child(7, "other")) == [6, 7]
    assert line.submits == [(1, True), (7, True)]


async def test_a_bundle_that_is_gone_is_sent_once_more() -> None:
    line = Line()
    await line.send(child(1))
    line.held.clear()
    assert await line.send(*map(child, range(2, 6))) == [2, 3, 4, 5]
    assert len(line.submits) == 2
    assert line.orders[0] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "problem",
    [Unreachable("reset", sent=True), RefusedByAgent("busy", "busy", final=False)],
)
async def test_when_the_first_one_fails_the_next_one_brings_it(problem) -> None:
    line = Line()
    line.problems.append(problem)
    assert await line.send(child(1), child(2), child(3)) == [str(problem), 2, 3]
    assert line.submits == [(1, True), (2, True)]


async def test_a_lost_answer_is_everybodys_of_that_request() -> None:
    line = Line()
    await line.send(child(1))
    line.problems.append(Unreachable("reset", sent=True))
    assert await line.send(child(2), child(3)) == ["reset", "reset"]
    assert await line.send(dataclasses.replace(child(2), attempt=2)) == [2]


async def test_who_waits_for_a_first_one_that_is_cancelled_goes_first() -> None:
    line = Line()
    never = asyncio.Event()
    submit = line.submit

    async def hang(job: Job, service: Service, keep: bool) -> PayloadDoc:
        if job.id == 1:
            await never.wait()
        return await submit(job, service, keep)

    line.deliveries = Deliveries(hang, line.order)
    first = asyncio.create_task(line.deliveries.send(child(1), SERVICE))
    second = asyncio.create_task(line.send(child(2)))
    await asyncio.wait([first], timeout=0)
    first.cancel()
    assert await second == [2]


async def test_another_file_of_the_same_content_is_sent_too() -> None:
    """What is executable in it may differ, which the digest does not say."""
    line = Line()
    for number, file in ((1, "f"), (2, "g"), (3, "g"), (4, "f")):
        assert await line.send(child(number, file=file)) == [number]
    assert (line.submits, line.orders) == ([(1, True), (2, True), (4, True)], [[3]])
