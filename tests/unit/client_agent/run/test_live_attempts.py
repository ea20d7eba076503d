"""Attempts that say something while they run, fall silent, or ask to be tried again later."""

from __future__ import annotations

import pytest

from client_agent.report.event_stream import EventStream, Wanted
from client_agent.run import outcomes
from shared.clock import yield_to_loop
from shared.wire import AgentEvent, AgentStatus, PayloadState, Progress, Reason, RetryLater
from tests.kit.agent import SERVER, Rig
from tests.kit.clock import SimClock


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path, SimClock())
    await made.open()
    yield made
    await made.close()
    assert made.sandbox.violations == []


async def started(rig, key="1.1", **more):
    payload = await rig.submit(key, **more)
    return payload, await rig.sandbox.process(key)


async def ended_doc(rig, payload):
    return (await rig.ended(payload.id)).doc()


# -- live values


async def test_a_running_payload_has_its_live_values_and_keeps_them_at_its_end(rig):
    payload, process = await started(rig)
    process.log(b"::progress value=1,total=2::half\n::output name=a::b\n")
    running = rig.context.outputs.doc(await rig.payloads.get(payload.id))
    assert (running.live.progress, running.live.message) == (Progress(current=1, total=2), "half")
    process.log(b"::notice::done")
    process.finish()
    live = (await ended_doc(rig, payload)).live
    assert (live.progress.current, live.output, live.notices[0].text) == (1, {"a": "b"}, "done")
    while rig.context.outputs.get(payload.id) is not None:
        await yield_to_loop()


async def test_a_short_attempt_without_commands_costs_no_report_and_stores_nothing_more(rig):
    payload, process = await started(rig)
    process.log(b"hello\n")
    await rig.clock.advance(4)
    assert rig.context.outputs.doc(await rig.payloads.get(payload.id)).live is None
    assert rig.context.outputs.reports == 0
    process.finish()
    assert (await ended_doc(rig, payload)).live is None


class Stream:
    """An event stream, which may be read late."""

    def __init__(self, rig, after=0):
        self.rig = rig
        self.lines = EventStream(
            rig.payloads,
            rig.context.outputs,
            rig.context.folders,
            rig.clock,
            Wanted(after, SERVER),
            lambda: AgentStatus(slots=1, running=0),
        ).lines()

    async def next(self):
        chunk = await anext(self.lines)
        return [AgentEvent.model_validate_json(line) for line in chunk.splitlines()]

    async def live(self):
        """The next live values."""
        while True:
            for event in await self.next():
                if event.payload is not None and event.payload.live is not None:
                    return event


async def test_values_are_reported_at_most_twice_a_second_and_only_the_latest(rig):
    payload, process = await started(rig)
    stream = Stream(rig, rig.payloads.seq)
    await stream.next()
    at, values = [], []
    for number in range(20):
        process.log(f"::progress value={number}::\n".encode())
        before = rig.context.outputs.reports
        await rig.clock.advance(0.125)
        if rig.context.outputs.reports != before:
            event = await stream.live()
            assert (event.seq, event.payload.status) == (rig.payloads.seq, PayloadState.RUNNING)
            at.append(number)
            values.append(event.payload.live.progress.current)
    assert values == at == [0, 4, 8, 12, 16]
    process.finish()
    await rig.ended(payload.id)


async def test_a_slow_reader_gets_the_latest_values_only(rig):
    payload, process = await started(rig)
    stream = Stream(rig, rig.payloads.seq)
    await stream.next()
    for number in range(20):
        process.log(f"::progress value={number}::\n".encode())
        await rig.clock.advance(1)
    assert (await stream.live()).payload.live.progress.current == 19
    assert list(rig.context.outputs._reported) == [payload.id]
    process.finish()
    while (event := (await stream.next())[0]).payload is None:
        pass  # a heartbeat that was due
    assert event.payload.status is PayloadState.COMPLETED


async def test_a_new_reader_gets_the_values_of_all_that_run(rig):
    _, first = await started(rig, "1.1")
    _, second = await started(rig, "2.1")
    for process in (first, second):
        process.log(b"::progress value=1::\n")
    await rig.clock.advance(1)
    stream = Stream(rig, rig.payloads.seq)
    assert [event.payload for event in await stream.next()] == [None]
    assert {(await stream.live()).payload.key for _ in range(2)} == {"1.1", "2.1"}
    for process in (first, second):
        process.finish()


async def test_output_without_commands_is_reported_every_five_seconds(rig):
    _, process = await started(rig)
    reports = []
    for _ in range(12):
        process.log(b".")
        await rig.clock.advance(1)
        reports.append(rig.context.outputs.reports)
        rig.context.outputs.report(1, SERVER)
    assert reports[3] == 0
    assert reports[-1] == 2
    await rig.clock.advance(60)
    assert rig.context.outputs.reports == 3  # nothing new after that
    process.finish()


async def test_no_report_says_that_it_runs_once_it_may_have_ended(rig):
    payload, process = await started(rig)
    process.log(b"::progress value=1::\n")
    process.finish()
    await rig.ended(payload.id)
    await rig.clock.advance(1)
    assert rig.context.outputs.reports == 0
    assert rig.context.outputs.report(payload.id, SERVER) is None


# -- silence


async def test_a_silent_attempt_is_stopped(rig):
    payload, process = await started(rig, heartbeat_timeout_s=60.0, timeout_s=1e6)
    for data in (b"x", b"::heartbeat::\n"):
        await rig.clock.advance(59)
        process.log(data)
    await rig.clock.advance(59)
    process.log(stderr=b"x")
    await rig.clock.advance(59.9)
    assert process.alive
    await rig.clock.advance(0.2)
    doc = await ended_doc(rig, payload)
    assert (doc.status, doc.reason) == (PayloadState.FAILED, Reason.HEARTBEAT_TIMEOUT)
    assert doc.message == (
        "stopped because it wrote nothing to stdout or stderr for 1m; its heartbeat timeout is 1m"
    )
    assert not doc.interrupted
    assert process.asked_to_stop  # SIGTERM first


async def test_who_ignores_sigterm_is_killed_after_the_grace_time(rig):
    rig.sandbox.obeys_sigterm = False
    payload, process = await started(rig, heartbeat_timeout_s=60.0, timeout_s=1e6)
    await rig.clock.advance(60.1)
    assert process.alive
    await rig.clock.advance(5)
    assert (await ended_doc(rig, payload)).reason is Reason.HEARTBEAT_TIMEOUT


async def test_the_time_before_its_start_is_no_silence(rig):
    first = [await started(rig, f"{n}.1") for n in (1, 2)]
    payload = await rig.submit("3.1", heartbeat_timeout_s=60.0, timeout_s=1e6)
    await rig.clock.advance(50)
    for _, process in first:
        process.finish()
    process = await rig.sandbox.process("3.1")
    await rig.clock.advance(59)
    assert process.alive
    await rig.clock.advance(2)
    assert (await ended_doc(rig, payload)).reason is Reason.HEARTBEAT_TIMEOUT


async def test_what_the_agent_does_not_read_is_no_silence(rig):
    _, process = await started(rig, heartbeat_timeout_s=60.0, timeout_s=1e6)
    process.output_paused = True
    await rig.clock.advance(1000)
    assert process.alive
    process.output_paused = False
    await rig.clock.advance(10)
    assert process.alive
    process.finish()


async def test_without_a_heartbeat_timeout_silence_is_no_fault(rig):
    _, process = await started(rig, timeout_s=1e7)
    await rig.clock.advance(1e6)
    assert process.alive
    process.finish()


async def test_a_wall_clock_that_jumps_is_no_silence(rig):
    _, process = await started(rig, heartbeat_timeout_s=60.0, timeout_s=1e6)
    rig.clock.jump(1e6)
    await rig.clock.advance(59)
    assert process.alive
    process.finish()


# -- later


@pytest.mark.parametrize(
    ("said", "code", "later"),
    [
        (b"", 75, RetryLater()),
        (b"::retry-later after=60s::GPU busy\n", 75, RetryLater(after_s=60, message="GPU busy")),
        (b"::retry-later after=60s::GPU busy", 0, RetryLater(after_s=60, message="GPU busy")),
        (b"::retry-later::\n", 3, RetryLater()),
    ],
)
async def test_who_asks_is_tried_later_and_keeps_its_result(rig, said, code, later):
    payload, process = await started(rig)
    process.write("part.txt", b"1")
    process.log(said)
    process.finish(code)
    doc = await ended_doc(rig, payload)
    assert (doc.status, doc.reason) == (PayloadState.FAILED, Reason.EXIT_CODE)
    assert (doc.exit_code, doc.retry_later) == (code, later)
    assert doc.message.startswith("run.sh asked to be tried again later")
    assert doc.message.endswith(later.message)
    assert rig.result(payload.id)["part.txt"] == b"1"
    assert doc.interrupted is False


async def test_a_limit_or_a_cancel_is_not_tried_later(rig):
    payload, process = await started(rig)
    process.log(b"::retry-later::\n")
    await rig.clock.advance(61)
    doc = await ended_doc(rig, payload)
    assert (doc.reason, doc.retry_later) == (Reason.TIMEOUT, None)
    payload, process = await started(rig, "2.1")
    process.log(b"::retry-later::\n")
    await rig.runner.kill(payload.id)
    doc = await ended_doc(rig, payload)
    assert (doc.status, doc.retry_later) == (PayloadState.KILLED, None)


async def test_another_exit_code_is_not_tried_later(rig):
    payload, process = await started(rig)
    process.finish(74)
    assert (await ended_doc(rig, payload)).retry_later is None


async def test_after_the_acknowledgement_nothing_of_it_is_kept(rig):
    payload, process = await started(rig)
    process.log(b"::output name=secret::x\n")
    process.finish(outcomes.LATER)
    await rig.ended(payload.id)
    await rig.clock.advance(1)
    await rig.payloads.expire(0.0)
    doc = (await rig.payloads.get(payload.id)).doc()
    assert (doc.live, doc.retry_later) == (None, None)
