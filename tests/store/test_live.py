"""What running attempts say, in their rows and events."""

from dataclasses import replace
from typing import Any

from server.domain.jobs import Event, Job, Move
from server.domain.live import Live, NewEvent, Report
from server.store.changes import Listener
from shared.ids import AttemptKey
from shared.wire import JobState, Progress
from tests.kit.each import each
from tests.kit.store import Store, claim

LINES = (NewEvent("job.notice", "one", "notice"), NewEvent("job.warning", "two", "warning"))


async def running(jobs: Store) -> Job:
    submitted = await jobs.to(await jobs.claimed(), JobState.SUBMITTED)
    return await jobs.to(submitted, JobState.RUNNING)


def report(job: Job, **what: Any) -> Report:
    live = Live(
        progress=Progress(current=45, total=100),
        message="step 45",
        output={"score": "0.93"},
        heartbeat_at=40,
        notices=LINES,
    )
    usual = Report(job.key, "node", 50, live, news=True, sampled=True)
    return replace(usual, **what)


def notes(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(one.event, one.level, one.message) for one in events if not one.is_move]


SAID = [
    ("job.notice", "notice", "one"),
    ("job.warning", "warning", "two"),
    ("job.output", "info", "score: 0.93"),
]


async def test_what_a_running_attempt_says_is_in_its_rows_and_its_events(jobs) -> None:
    job = await running(jobs)
    noted: list[int] = []
    jobs.database.listener = Listener(lambda _: None, noted.append)
    assert await jobs.record_live([report(job)]) == {job.key}
    job = await jobs.get(job.id)
    assert (job.progress, job.message) == (Progress(current=45, total=100), "step 45")
    assert (job.output, job.heartbeat_at, job.state) == ({"score": "0.93"}, 40, JobState.RUNNING)
    attempt = await jobs.attempt(job.key)
    assert (attempt.progress, attempt.output) == (job.progress, job.output)
    events = await jobs.events(job.id)
    assert notes(events) == [*SAID, ("job.progress", "info", "step 45")]
    assert {(one.attempt, one.agent, one.at) for one in events if not one.is_move} == {
        (1, "node", 50)
    }
    assert [dict(one.fields) for one in events[-2:]] == [
        {"name": "score", "value": "0.93"},
        {"current": 45.0, "total": 100.0},
    ]
    assert noted == [job.id]
    assert [one.state for one in await jobs.moves(job.id, 2)] == ["Submitted", "Running"]


@each("wrong", [{"key": AttemptKey(1, 2)}, {"agent": "other"}, {}])
async def test_nothing_is_written_about_what_does_not_run_there(jobs, wrong) -> None:
    job = await running(jobs)
    if not wrong:
        await jobs.to(job, JobState.UNKNOWN)
    before = await jobs.get(job.id), await jobs.attempt(job.key), await jobs.events(job.id)
    assert await jobs.record_live([report(job, **wrong)]) == set()
    now = await jobs.get(job.id), await jobs.attempt(job.key), await jobs.events(job.id)
    assert now == before


async def test_the_end_of_an_attempt_writes_what_it_said_last(jobs) -> None:
    job = await running(jobs)
    await jobs.record_live([report(job, live=Live(notices=LINES[:1]), sampled=False)])
    assert (await jobs.get(job.id)).message == "moved", "nothing else was said"
    said = Live(progress=Progress(current=100), notices=LINES, output={"score": "0.93"})
    facts = {"progress": said.progress, "output": said.output}
    end = Move(job.id, 1, job.state, JobState.COMPLETED, 60, "ended", facts=facts, live=said)
    ended = await jobs.move(replace(end, changes={"ended_at": 60}))
    assert ended is not None
    assert (ended.progress, ended.output) == (said.progress, said.output)
    attempt = await jobs.attempt(job.key)
    assert (attempt.progress, attempt.output) == (said.progress, said.output)
    events = await jobs.events(job.id)
    assert notes(events) == SAID
    assert events[-1].event == "job.completed"
    assert await jobs.record_live([report(job)]) == set()


async def test_sends_that_fail_alike_are_folded_around_other_events(jobs) -> None:
    job = await jobs.upload()
    for number in range(3):
        job = await jobs.to(await jobs.moved(claim(job)), JobState.QUEUED)
        await jobs.change_tags(job.id, (f"tag {number}",), (), 40, "ann")
    events = await jobs.events(job.id)
    assert [one.state for one in events if one.is_move] == ["Queued", "Processing", "Queued"]
    assert [one.event for one in events if not one.is_move] == ["job.tagged"] * 3
