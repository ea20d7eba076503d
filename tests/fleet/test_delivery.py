"""Sending, asking and hearing of what was sent, step by step on simulated time."""

import asyncio
import copy
import errno
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from sqlite3 import OperationalError
from typing import Any
from unittest import mock

import pytest

from server.domain.agents import RefusedByAgent, Unreachable
from server.domain.errors import BadField
from server.domain.service import Service
from server.stages import get, inbox, poll
from server.stages.results import NoRoom
from server.store import jobs as store_jobs
from shared.clock import yield_to_loop
from shared.ids import AttemptKey
from shared.principals import LOCAL
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import JobState, PayloadDoc, PayloadState, Reason, Usage
from tests.kit.store import new
from tests.model.simulation import World, simulated

SERVICES = {"s": Service("s", runs_per_user=50, max_runs=50, queue_timeout_s=100.0)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with simulated(tmp_path, SERVICES, lost_after_s=3_600.0) as world:
        yield world


async def south_alone(world: World) -> Any:
    """A started server, whose agent in the north is cut off; the other one."""
    await world.start()
    world.agents[0].drop()
    return world.agents[1]


async def sweep(world: World, seconds: int = 0) -> None:
    """One now, and one in each second that passes."""
    for second in range(1 + seconds):
        await world.clock.advance(float(second > 0))
        await world.sweep()


async def one_sent(world: World) -> tuple[Any, Any]:
    """The only agent that is there, and the payload of job 1, which it has."""
    south = await south_alone(world)
    await world.upload("ann", "s")
    await sweep(world)
    ((_, payload),) = world.payloads()
    return south, payload


def always(agent: Any, problem: Exception) -> list[int]:
    """Each submit to the agent ends so. Returns jobs that were to be submitted."""
    calls = list[int]()

    async def submit(job: Any, *_: Any) -> Any:
        calls.append(job.id)
        raise problem

    agent.submit = submit
    return calls


async def at_its_end(world: World, agent: Any) -> None:
    """A payload of the agent has completed, and its result is long on its way."""
    agent.faults = ["slow"]
    payload = next(iter(agent.payloads.values()))
    agent.start(payload)
    agent.end(payload, PayloadState.COMPLETED)
    await world.settle()


async def test_a_slot_is_free_as_soon_as_the_attempt_has_ended_not_when_its_result_is_here(world):
    south = await south_alone(world)
    jobs = [await world.upload("ann", "s") for _ in range(3)]
    await sweep(world)
    await at_its_end(world, south)
    assert await world.state(jobs[0]) is not JobState.COMPLETED, "its result is on its way"
    await sweep(world)
    assert await world.state(jobs[2]) is not JobState.QUEUED
    await world.clock.advance(30.0)
    assert await world.state(jobs[0]) is JobState.COMPLETED
    assert world.get.inbox.ended() == {}


async def test_an_end_is_left_to_the_next_connection_while_its_agent_is_away(world):
    south, payload = await one_sent(world)
    south.faults = ["cut"]
    south.end(payload, PayloadState.COMPLETED)
    await world.settle()
    assert world.get.inbox.until_next_s() == math.inf
    await south.connect()
    await world.settle()
    assert await world.state(1) is JobState.COMPLETED


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_result_that_cannot_be_fetched_for_too_long_does_not_hold_its_job_for_ever(
    world, cancelled
):
    world.lost_after_s = 100.0
    south, payload = await one_sent(world)
    south.fetch = mock.Mock(side_effect=Unreachable("it arrives damaged", sent=True))
    south.end(payload, PayloadState.COMPLETED)
    await world.clock.advance(90.0)
    assert await world.state(1) is JobState.UNKNOWN
    if cancelled:
        assert (await world.cancel(LOCAL, 1)).state is JobState.CANCELLED
    for _ in range(2):
        await world.clock.advance(60.0)
    job = await world.jobs.get(1)
    assert job.state is (JobState.CANCELLED if cancelled else JobState.QUEUED)
    assert "result could not be fetched" in job.message


async def test_a_job_that_was_to_be_cancelled_while_its_agent_was_asked_for_it_does_not_fail(world):
    world.lost_after_s, world.services["s"] = 100.0, Service("s", infra_retries=0)
    south = await south_alone(world)
    south.faults = ["lost", *["unreachable"] * 99]
    await world.upload("ann", "s")
    await sweep(world)
    await world.cancel(LOCAL, 1, 0.0)
    assert await world.state(1) is JobState.PROCESSING
    south.drop()
    for _ in range(9):
        await world.clock.advance(60.0)
        await sweep(world)
    assert await world.state(1) is JobState.CANCELLED


async def test_a_cancel_ends_the_run_that_it_was_asked_for_and_no_later_one(world):
    south, payload = await one_sent(world)

    async def killed(*_: Any, **__: Any) -> None:
        """Its end is here before the agent's answer, and the user before both."""
        south.end(payload, PayloadState.KILLED)
        await world.settle()
        await world.retry(LOCAL, 1)

    south.settle = killed
    await world.cancel(LOCAL, 1)
    assert (await world.state(1), (await world.jobs.get(1)).run) == (JobState.QUEUED, 2)


async def test_a_batch_that_waits_is_cancelled_at_once(world):
    await south_alone(world)
    job_id = await world.upload("ann", "s", array="0-1", not_before="in 9h")
    assert (await world.cancel(LOCAL, job_id)).state is JobState.CANCELLED


async def test_an_agent_that_is_back_while_its_jobs_are_given_up_keeps_the_others(
    world, monkeypatch
):
    monkeypatch.setattr(poll, "MOVED_AT_ONCE", 1)
    south = await south_alone(world)
    jobs = [await world.upload("ann", "s") for _ in range(2)]
    await sweep(world)
    south.drop()
    await world.clock.advance(3_700.0)
    change_all = store_jobs.change_all

    def back(*given: Any) -> int:
        moved = change_all(*given)
        south.contact()
        return moved

    monkeypatch.setattr(store_jobs, "change_all", back)
    await world.poll.run_once()
    assert [await world.state(job) for job in jobs] == [JobState.QUEUED, JobState.SUBMITTED]


async def test_a_stale_question_leaves_a_newer_delivery_alone(world):
    """The first attempt's question sleeps while the second attempt's bundle is on its way."""
    south = await south_alone(world)
    south.faults = ["lost", "unreachable"]
    job_id = await world.upload("ann", "s")
    await sweep(world)
    assert world.clock.sleeping == 1, "the question was not answered, and is asked again soon"
    first = await world.jobs.get(job_id)
    south.machine.settle("sim", first.key)
    await world.get.lost(first.key, "given up meanwhile")

    arrived = asyncio.Event()
    honest, submits = south.submit, []

    async def slow(job: Any, *more: Any) -> Any:
        submits.append(job.key)
        await arrived.wait()
        return await honest(job, *more)

    south.submit = slow
    await sweep(world)
    assert (await world.jobs.get(job_id)).attempt == 2
    await sweep(world, 10)
    assert south.machine.settled == {("sim", str(first.key))}, "the newer key was settled"
    arrived.set()
    await world.settle()
    assert await world.state(job_id) is JobState.SUBMITTED
    assert [key.attempt for key in submits] == [2]


async def test_a_submit_that_is_in_progress_is_asked_about_and_is_no_refusal(world):
    south = await south_alone(world)
    calls = always(south, RefusedByAgent("submit_in_progress", "wait", final=False))
    job_id = await world.upload("ann", "s")
    south.faults = ["in_progress", "in_progress"]
    await sweep(world)
    south.arrive(AttemptKey(job_id, 1), world.acknowledged[job_id])
    await world.clock.advance(5.0)
    job = await world.jobs.get(job_id)
    assert (job.state, job.attempt, calls) == (JobState.SUBMITTED, 1, [job_id])
    assert [one.most for one in world.registry.candidates("s")] == [None], "it was not refused"


async def test_what_cannot_be_sent_is_sent_again_after_growing_delays(world):
    calls = always(await south_alone(world), Unreachable("cut", sent=True))
    job_id = await world.upload("ann", "s")
    await sweep(world, 90)
    assert 5 <= len(calls) <= 8, "at once, and after 1, 2, 4, 8, 16, 32 s"
    assert not (await world.jobs.get(job_id)).ended


async def test_a_refusing_agent_is_asked_seldom_and_the_history_does_not_grow_with_it(world):
    south = await south_alone(world)
    full = RefusedByAgent("disk_full", "the disk is full", final=False, retry_after_s=1.0)
    calls = always(south, full)
    world.services["s"] = Service("s", runs_per_user=50, max_runs=50)
    jobs = [await world.upload("ann", "s") for _ in range(5)]
    await sweep(world)
    assert len(calls) == 2, "its slots; the others were not even offered"
    await sweep(world, 1_000)
    assert len(calls) <= 2 + 8, "after 5, 10, 20, 40, 80, 160, 320 s, one job each time"
    assert max([len(await world.jobs.events(job_id)) for job_id in jobs]) <= 4
    assert {await world.state(job_id) for job_id in jobs} == {JobState.QUEUED}
    del south.submit
    await sweep(world, 700)
    assert await world.state(jobs[0]) is JobState.SUBMITTED
    assert [one.most for one in world.registry.candidates("s")] == [None], "it takes jobs again"


async def test_jobs_of_a_service_that_was_taken_away_say_so_and_end_at_last(world):
    await world.start()
    for agent in world.agents:
        agent.drop()
    job_id = await world.upload("ann", "s")

    async def settings(*services: Service) -> None:
        world.services.clear()
        world.services.update({one.name: one for one in services})
        world.wakeups.services_changed()
        await sweep(world)

    await world.clock.advance(3_599.0)
    for _ in ("taken out", "again, after it was put back"):
        await settings()
        await world.clock.advance(3_599.0)
        await sweep(world)
        await settings(Service("s"))
    await settings()
    await world.clock.advance(3_599.0)
    await sweep(world)
    job = await world.jobs.get(job_id)
    why = await world.waiting([job])
    assert why[job_id].reason == "the server has no service s in its settings"
    await world.clock.advance(10.0)
    await sweep(world)
    job = await world.jobs.get(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.NOT_OFFERED)


async def test_a_bundle_that_an_agent_refuses_for_good_is_shared_with_no_later_upload(world):
    await world.start()
    for agent in world.agents:
        always(agent, RefusedByAgent("invalid_bundle", "a checksum is wrong", final=True))
    first, second = [await world.upload("ann", "s", same="bytes") for _ in range(2)]
    await sweep(world)
    job = await world.jobs.get(first)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.INVALID_BUNDLE)
    assert job.bundle == (await world.jobs.get(second)).bundle
    assert job.bundle != (await world.jobs.get(await world.upload("ann", "s", same="bytes"))).bundle


async def test_a_job_is_not_refused_for_good_while_an_agent_that_is_away_may_take_it(world):
    south = await south_alone(world)
    calls = always(south, RefusedByAgent("not_offered", "no", final=True))
    job_id = await world.upload("ann", "s")
    await sweep(world)
    assert (await world.state(job_id), calls) == (JobState.QUEUED, [job_id])
    await world.agents[0].connect()
    await sweep(world, 61)
    assert (await world.jobs.get(job_id)).agent == "north"


async def test_a_cancel_asks_once_while_the_result_is_on_its_way(world):
    south = await south_alone(world)
    job_id = await world.upload("ann", "s")
    await sweep(world)
    await at_its_end(world, south)
    south.settle = mock.AsyncMock(wraps=south.settle)
    wish = asyncio.ensure_future(world.cancel(LOCAL, job_id, 60.0))
    await world.clock.advance(29.0)
    assert south.settle.await_count <= 6
    await world.clock.advance(2.0)
    with pytest.raises(Exception, match="Completed"):
        await wish


async def test_an_end_does_not_wait_for_the_next_try_of_what_was_said_before_it(world, monkeypatch):
    south, payload = await one_sent(world)
    with monkeypatch.context() as broken:
        broken.setattr("server.store.jobs.move", mock.Mock(side_effect=OSError("no disk")))
        south.start(payload)
        await world.settle()
        for seconds in (0.5, 2.0, 10.0, 7.0):  # the next try is in a minute
            await world.clock.advance(seconds)
    assert await world.state(1) is JobState.SUBMITTED
    south.end(payload, PayloadState.COMPLETED)
    await world.settle()
    assert await world.state(1) is JobState.COMPLETED


async def test_a_report_that_waits_is_looked_at_once_though_its_agent_is_connected_anew(world):
    """Both connections say it: with the new one the report of the former one is not forgotten."""
    south, payload = await one_sent(world)
    world.get.inbox._delay_s = 0.05
    connected = copy.copy(south)
    world.get.follow = mock.Mock(wraps=world.get.follow)
    south.start(payload)
    await world.get.stop(south.name)
    south._report(payload)  # as who has asked by the former one does
    connected._report(payload)
    await world.clock.advance(0.05)
    ((report,),) = [one.args for one in world.get.follow.call_args_list]
    assert report.agent is connected
    assert await world.state(1) is JobState.RUNNING


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("server.store.changes.all_of", DatabaseUnavailable(OperationalError("disk I/O error"))),
        ("server.store.jobs.move", RuntimeError("a defect")),
    ],
)
async def test_what_fails_in_a_round_costs_no_report_that_was_taken_up(world, what, problem):
    world.bulk = True
    south, payload = await one_sent(world)
    world.following.cancel()
    south.end(payload, PayloadState.COMPLETED)
    world.database.memory.clear()  # as after a change that was undone
    with mock.patch(what, side_effect=problem), suppress(DatabaseUnavailable):
        await world.send.follow()
        await world.settle()
    await sweep(world, 1)
    assert await world.state(1) is JobState.COMPLETED


async def test_a_report_is_kept_though_nothing_can_be_done_for_it(world):
    south, payload = await one_sent(world)
    full = OSError(errno.ENOSPC, "no space left on device")
    with (
        mock.patch("server.storage.contents.Contents.keep", side_effect=full),
        mock.patch("server.stages.results.Results.add", side_effect=RuntimeError("threads")),
    ):
        south.end(payload, PayloadState.COMPLETED)
        await world.settle()
    await sweep(world, 1)
    assert await world.state(1) is JobState.COMPLETED


async def test_no_report_of_a_former_connection_is_followed_by_a_round_that_was_under_way(world):
    south = await south_alone(world)
    south.faults = ["", "", "slow", "slow"]
    for _ in range(2):
        await world.upload("ann", "s")
    await sweep(world)
    world.following.cancel()
    for payload in south.payloads.values():
        south.end(payload, PayloadState.COMPLETED)
    first, second = world.get.inbox.take(2)
    first.content = second.content = None
    world.get.followed(first, await world.get.follow(first))
    await world.settle()
    await world.get.results.add(first.which, NoRoom(1 << 60, 0), 1 << 60)
    settled = await world.get.follow(second)
    stopping = asyncio.create_task(world.get.stop(south.name))
    await yield_to_loop()
    world.get.followed(second, settled)
    await stopping
    assert second.which not in world.get._tasks
    assert not len(world.get.results)


async def test_of_a_job_that_was_cancelled_nothing_is_followed_any_more(world):
    south, payload = await one_sent(world)
    south.start(payload)
    await world.settle()
    assert world.get.progress._followed
    await world.cancel(LOCAL, 1)
    await world.settle()
    assert not world.get.progress._followed


@pytest.mark.parametrize(
    "said",
    [
        {"started_at": "soon"},
        {"created_at": ""},
        {"usage": Usage(wall_s=1e308)},
        {"usage": Usage(wall_s=1.0, cpu_s=-1e308)},
        {"usage": Usage(wall_s=1.0, peak_memory_bytes=10**400)},
    ],
)
async def test_an_end_counts_whatever_times_and_use_its_agent_says(world, said):
    south, payload = await one_sent(world)
    doc = payload.doc
    payload.doc = lambda now: doc(now).model_copy(update=said)
    south.start(payload)
    await world.settle()
    assert await world.state(1) is JobState.RUNNING
    south.end(payload, PayloadState.COMPLETED)
    await world.settle()
    job = await world.jobs.get(1)
    assert (job.state, job.usage) == (JobState.COMPLETED, None)


# -- floods


async def test_jobs_of_agents_that_send_events_are_not_read_at_every_sweep(world, monkeypatch):
    await world.start()
    for _ in range(3):
        await world.upload("ann", "s")
    await sweep(world)
    read = mock.Mock(wraps=store_jobs.in_states)
    monkeypatch.setattr(store_jobs, "in_states", read)
    for _ in range(5):
        await world.poll.run_once()
    world.agents[0].drop()
    await world.poll.run_once()
    read.assert_not_called()  # nothing is judged yet
    await world.clock.advance(61.0)
    assert await world.poll.run_once() == 1
    assert {one.args[2] for one in read.call_args_list} == {"north"}


class Flood:
    """An agent names payloads that no job has, and takes its time to end them; three of it may be
    looked at, and two of them be ended.
    """

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inbox, "_MAX_BYTES", 3 * inbox._REPORT_BYTES)
        monkeypatch.setattr(get, "_MAX_KILLS", 2)
        self.world, self.agent = world, world.agents[0]
        self.go, self.asked, self.now = asyncio.Event(), list[int](), Counter[str]()
        self.agent.kill = self._kill  # type: ignore[method-assign]

    async def _kill(self, payload_id: int, key: str | None = None) -> None:
        self.asked.append(payload_id)
        self.now["asked"] += 1
        self.now["most"] = max(self.now["most"], self.now["asked"])
        await self.go.wait()
        self.now["asked"] -= 1

    async def names(self, *numbers: int, size: int = 0) -> asyncio.Task[None]:
        """It reports these; done as soon as the server has taken them up."""

        async def name() -> None:
            for number in numbers:
                payload = PayloadDoc(id=number, status=PayloadState.RUNNING, key=f"{number}.1")
                await self.world.get.receive(self.agent, payload, size=size)

        naming = asyncio.create_task(name())
        await self.world.settle()
        return naming

    async def over(self, *naming: asyncio.Task[None]) -> set[int]:
        """It ends them all. Returns those that it was asked to end."""
        self.go.set()
        await asyncio.gather(*naming)
        await self.world.settle()
        return {*self.asked}


async def test_payloads_without_end_are_read_no_faster_than_they_are_looked_at(world, monkeypatch):
    await world.start()
    flood = Flood(world, monkeypatch)
    naming = await flood.names(*range(1, 11))
    assert not naming.done()
    asked_for = PayloadDoc(id=11, status=PayloadState.RUNNING, key="11.1")
    world.get.inbox.put(flood.agent, asked_for)  # and what the server asked for
    assert flood.asked == [1, 2]
    assert await flood.over(naming) == {*range(1, 12)}
    assert flood.now["most"] == 2


async def test_large_words_of_an_agent_take_the_room_of_many_and_give_it_back(world, monkeypatch):
    """Also where it only says more about a payload."""
    await world.start()
    flood = Flood(world, monkeypatch)
    assert (await flood.names(1, size=2 * inbox._REPORT_BYTES)).done()
    more, small = await flood.names(1), await flood.names(2)
    assert (more.done(), small.done()) == (False, False)
    small.cancel()
    assert await flood.over(more) == {1}
    flood.go.clear()
    rest = [await flood.names(number) for number in (4, 5, 6, 7)]
    assert [one.done() for one in rest] == [True, True, True, False], "all the room was given back"
    assert await flood.over(*rest) == {1, 4, 5, 6, 7}


# -- many at once


async def commits(world: World, action: Callable[[], Awaitable[object]]) -> int:
    with mock.patch.object(world.database, "write", wraps=world.database.write) as write:
        await action()
    return write.call_count


async def many(world: World, count: int) -> None:
    for _ in range(count):
        await world.jobs.insert(new(created_at=world.steady.now()), "queued")


@pytest.mark.parametrize("agent", ["north", "gone"])
async def test_all_jobs_of_an_agent_that_goes_away_are_moved_in_few_transactions(world, agent):
    await world.start()
    await many(world, 200)
    sent = f"UPDATE jobs SET state = 'Running', attempt = 1, agent = '{agent}', payload_id = id"
    await world.database.write(lambda tx: (tx.rows(sent), tx.memory.clear()))
    if agent == "north":
        world.agents[0].drop()
    else:
        await world.poll.run_once()  # it counts from then on
    await world.clock.advance(61.0)
    assert await commits(world, world.poll.run_once) <= 3
    assert len(await world.jobs.in_states([JobState.UNKNOWN], agent)) == 200


async def test_all_jobs_that_an_upload_waits_for_are_read_at_once(world):
    await world.start()
    await many(world, 600)
    with mock.patch.object(world.database, "read", wraps=world.database.read) as read:
        await world.upload("ann", "s", after="1", inputs_from="2")
        few = read.call_count
        ids = ",".join(map(str, range(1, 601)))
        await world.upload("ann", "s", after=ids, inputs_from=ids)
        assert read.call_count == 2 * few
        for missing in ("1,700", "700"):
            with pytest.raises(BadField, match="700"):
                await world.upload("ann", "s", inputs_from=missing)


@pytest.mark.parametrize("in_settings", [True, False])
async def test_all_that_waited_too_long_is_given_up_in_few_transactions(world, in_settings):
    await world.start()
    for agent in world.agents:
        agent.drop()
    await many(world, 100)
    if not in_settings:
        del world.services["s"]
        world.wakeups.services_changed()
        await sweep(world)
        await world.clock.advance(3_599.0)
    await world.clock.advance(101.0)
    world.wakeups.services_changed()
    assert await commits(world, world.send.run_once) <= 5
    assert {await world.state(number) for number in range(1, 101)} == {JobState.FAILED}
