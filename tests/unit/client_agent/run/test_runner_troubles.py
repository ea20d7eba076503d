"""Stopping, and failures of the database, the disk and descriptors."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import sqlite3

import pytest

from client_agent.collect import result
from client_agent.run.attempt import PACK_TRIES
from client_agent.run.context import RETRY_S
from client_agent.storage import open_beneath
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import PayloadState, Reason
from tests.kit.agent import Rig
from tests.kit.clock import SimClock


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path, SimClock())
    await made.open()
    yield made
    await made.close()
    assert made.sandbox.violations == []


async def test_stopping_stores_what_ran_as_interrupted_and_leaves_what_waits(rig):
    for job in (1, 2):
        await rig.submit(f"{job}.1")
        (await rig.sandbox.process(f"{job}.1")).write("partial", b"p")
    waiting = await rig.submit("3.1")
    await rig.runner.stop(60)
    for payload_id in (1, 2):
        ended = await rig.payloads.get(payload_id)
        assert (ended.state, ended.outcome.reason) == (PayloadState.FAILED, Reason.SHUTDOWN)
        assert ended.outcome.interrupted
        assert rig.result(payload_id)["partial"] == b"p"
    assert (await rig.payloads.get(waiting.id)).state is PayloadState.PREPARED
    assert rig.folders.bundle(waiting.bundle_file).exists()


async def test_what_is_stored_as_running_while_the_agent_stops_gets_an_end(rig):
    """Or the next start would take it for an attempt that died with the agent."""
    start, stopping = rig.payloads.start, []

    async def stop_meanwhile(*args):
        running = await start(*args)
        stopping.append(asyncio.ensure_future(rig.runner.stop(60)))
        await rig.clock.settle()
        return running

    rig.payloads.start = stop_meanwhile
    payload = await rig.submit()
    await rig.ended(payload.id)
    await stopping[0]
    ended = await rig.payloads.get(payload.id)
    assert (ended.state, ended.outcome.reason) == (PayloadState.FAILED, Reason.SHUTDOWN)
    assert not rig.sandbox.starts


async def test_stopping_kills_what_ignores_sigterm(rig):
    rig.sandbox.obeys_sigterm = False
    payload = await rig.submit()
    await rig.sandbox.process("1.1")
    stopping = asyncio.ensure_future(rig.runner.stop(5.0))
    await rig.clock.until_asleep(3.0)
    await rig.clock.advance(3.1)
    await stopping
    ended = await rig.payloads.get(payload.id)
    assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.SHUTDOWN, True)


async def test_an_end_is_stored_once_the_database_recovers(rig):
    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    end, tries = rig.payloads.end, []

    async def failing(*args):
        tries.append(args)
        if len(tries) < 3:
            raise DatabaseUnavailable(sqlite3.OperationalError("disk is full"))
        return await end(*args)

    rig.payloads.end = failing
    process.finish()
    for count in (1, 2):
        await rig.clock.until_asleep(1.0)
        assert len(tries) == count
        await rig.clock.advance(1.0)
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED
    assert len(tries) == 3


async def test_an_attempt_does_not_start_until_it_can_be_stored_as_running(rig):
    start, tries = rig.payloads.start, []

    async def failing(*args):
        tries.append(args)
        if len(tries) == 1:
            raise DatabaseUnavailable(sqlite3.OperationalError("locked"))
        return await start(*args)

    rig.payloads.start = failing
    payload = await rig.submit()
    await rig.clock.until_asleep(1.0)
    assert not rig.sandbox.starts
    assert (await rig.payloads.get(payload.id)).state is PayloadState.PREPARED
    await rig.clock.advance(1.0)
    (await rig.sandbox.process("1.1")).finish()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED
    assert rig.sandbox.starts["1.1"] == 1


def fails_once(rig):
    """The first attempt that is to be stored as Running is not."""
    start, tries = rig.payloads.start, []

    async def failing(*args):
        tries.append(args)
        if len(tries) == 1:
            raise DatabaseUnavailable(sqlite3.OperationalError("disk is full"))
        return await start(*args)

    rig.payloads.start = failing


async def test_an_attempt_that_is_put_back_is_handled_by_one_worker_and_can_be_killed(rig):
    """Another worker that gets work meanwhile must not begin with it."""
    fails_once(rig)
    first = await rig.submit("1.1")
    await rig.clock.until_asleep(RETRY_S)
    await rig.submit("2.1")
    await rig.sandbox.process("2.1")
    assert not rig.sandbox.starts["1.1"]
    await rig.clock.advance(RETRY_S)
    await rig.sandbox.process("1.1")
    killed = await rig.runner.kill(first.id)
    assert killed.state is PayloadState.KILLED
    (await rig.sandbox.process("2.1")).finish()
    await rig.ended(2)
    third = await rig.submit("3.1")
    (await rig.sandbox.process("3.1")).finish()
    await rig.ended(third.id)
    assert rig.runner.alive


async def test_an_attempt_that_is_killed_before_it_is_put_back_is_not_tried_again(rig):
    fails_once(rig)
    payload = await rig.submit("1.1")
    await rig.clock.until_asleep(RETRY_S)
    assert (await rig.runner.kill(payload.id)).state is PayloadState.KILLED
    await rig.clock.advance(RETRY_S)
    await rig.clock.settle()
    assert not rig.runner.busy
    assert not rig.sandbox.starts["1.1"]


async def test_a_defect_of_the_agent_ends_one_attempt_and_no_worker(rig):
    def explode(name):
        raise ZeroDivisionError(name)

    rig.sandbox.hook = explode
    broken = [await rig.submit(f"{job}.1") for job in (1, 2, 3)]
    for payload in broken:
        ended = await rig.ended(payload.id)
        assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.AGENT_ERROR, True)
    rig.sandbox.hook = None
    payload = await rig.submit("4.1")
    (await rig.sandbox.process("4.1")).finish()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED


async def test_a_result_that_does_not_fit_on_the_disk_is_the_agents_fault(rig, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    monkeypatch.setattr(rig.folders, "seal_result", full)
    process.finish()
    ended = await rig.ended(payload.id)
    assert (ended.state, ended.outcome.reason) == (PayloadState.FAILED, Reason.AGENT_ERROR)
    assert ended.outcome.interrupted
    assert "No space left" in ended.outcome.message
    assert not list((rig.home / "staging").iterdir())


@pytest.mark.parametrize("step", ["prepare", "start"])
async def test_an_attempt_that_meets_a_shortage_of_descriptors_starts_after_it(rig, step):
    def short(name):
        if name == step:
            raise OSError(errno.EMFILE, "Too many open files")

    rig.sandbox.hook = short
    payload = await rig.submit()
    await rig.clock.until_asleep(RETRY_S)
    assert (await rig.payloads.get(payload.id)).state is PayloadState.PREPARED
    rig.sandbox.hook = None
    await rig.clock.advance(RETRY_S)
    (await rig.sandbox.process("1.1")).finish()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED
    assert rig.sandbox.starts["1.1"] == 1


@pytest.mark.parametrize("what", ["folder", "precious"])
async def test_a_shortage_of_descriptors_costs_no_result_and_no_file_of_it(rig, monkeypatch, what):
    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    process.write("folder/precious", b"p")
    real = open_beneath.open_component
    shortage = [True]

    def opening(parent, name, flags):
        if shortage[0] and name == what:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(parent, name, flags)

    monkeypatch.setattr(open_beneath, "open_component", opening)
    process.finish()
    await rig.clock.until_asleep(RETRY_S)
    assert (await rig.payloads.get(payload.id)).state is PayloadState.RUNNING
    shortage[0] = False
    await rig.clock.advance(RETRY_S)
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED
    assert rig.result(payload.id)["folder/precious"] == b"p"
    assert not list((rig.home / "staging").iterdir())


async def test_a_shortage_that_does_not_end_is_the_agents_fault(rig, monkeypatch):
    def short(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    monkeypatch.setattr(result, "collect", short)
    process.finish()
    for _ in range(PACK_TRIES - 1):
        await rig.clock.until_asleep(RETRY_S)
        await rig.clock.advance(RETRY_S)
    ended = await rig.ended(payload.id)
    assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.AGENT_ERROR, True)


async def test_waiting_payloads_stay_prepared_until_there_is_space(rig, monkeypatch):
    free = [0]
    monkeypatch.setattr(rig.folders, "free_bytes", lambda: free[0])
    identity = dataclasses.replace(rig.context.identity, min_free=100)
    rig.runner._context = dataclasses.replace(rig.context, identity=identity)
    payload = await rig.submit()
    await rig.clock.until_asleep(1.0)
    assert (await rig.payloads.get(payload.id)).state is PayloadState.PREPARED
    free[0] = 100
    await rig.clock.advance(1.0)
    (await rig.sandbox.process("1.1")).finish()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED
