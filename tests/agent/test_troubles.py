"""Failures of the database, disks, file servers, descriptors and the agent itself cost no attempt.
With a real disk and real descriptors: tests/processes/test_scarcity.py.
"""

import asyncio
import errno
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from client_agent.collect import result
from client_agent.intake.admission import CACHE_S, TIMEOUT_S, MountSources
from client_agent.payloads.store import Payloads
from client_agent.run.attempt import PACK_TRIES
from client_agent.run.context import RETRY_S
from client_agent.sandbox.base import Grant
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage import open_beneath
from client_agent.storage.folders import Folders
from shared.sqlite.files import DatabaseUnavailable
from tests.kit.agent_http import AgentClient, calling
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
COMPLETED, LOST = ("Completed", None, False), ("Failed", "agent_error", True)


async def state(agent: AgentClient, key: str = "1.1") -> str:
    return str((await agent.settle(key))[1]["payload"]["status"])


async def time_passes(agent: AgentClient, done: Callable[[], bool]) -> None:
    """What is to be tried again is, until that is done."""
    for _ in range(400):
        if done():
            return
        await agent.clock.advance(RETRY_S / 2)
        await agent.call("GET", "/")
    raise AssertionError("it did not happen")


async def starts(agent: AgentClient, key: str = "1.1") -> FakeProcess:
    await time_passes(agent, lambda: key in agent.sandbox.live)
    return agent.sandbox.live[key]


async def ends(agent: AgentClient, payload_id: int) -> tuple[str, str | None, bool]:
    """How, once what is to be tried again was: status, reason, interrupted."""
    ended = asyncio.ensure_future(agent.ended(payload_id))
    await time_passes(agent, ended.done)
    doc = await ended
    return doc["status"], doc["reason"], doc["interrupted"]


def short(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def fails(patch: pytest.MonkeyPatch, name: str, times: int) -> asyncio.Event:
    """A change of a row, so often; the event is set then."""
    real, left, met = getattr(Payloads, name), [times], asyncio.Event()

    async def failing(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return await real(*args)
        met.set()
        raise DatabaseUnavailable(sqlite3.OperationalError("disk is full"))

    patch.setattr(Payloads, name, failing)
    return met


async def test_what_cannot_be_stored_as_running_is_put_back_for_one(agent, monkeypatch) -> None:
    met = fails(monkeypatch, "start", 1)
    _, first = await agent.submit("1.1")
    await met.wait()
    assert await state(agent) == "Prepared"
    _, second = await agent.started("2.1")  # another worker must not begin with the first
    assert agent.sandbox.starts == {"2.1": 1}
    await starts(agent)
    assert (await agent.call("POST", f"/kill/{first['id']}"))[1]["status"] == "Killed"
    second.finish()
    await agent.completed("3.1")
    assert agent.sandbox.starts == {"1.1": 1, "2.1": 1, "3.1": 1}
    met = fails(monkeypatch, "start", 1)
    _, payload = await agent.submit("4.1")
    await met.wait()
    assert (await agent.call("POST", f"/kill/{payload['id']}"))[1]["status"] == "Killed"
    for _ in range(5):
        await agent.clock.advance(RETRY_S)
    await agent.completed("5.1")
    assert "4.1" not in agent.sandbox.starts, "what was killed before is not tried again"


async def test_a_defect_of_the_agent_ends_one_attempt_and_no_worker(agent) -> None:
    def explode(name: str) -> None:
        raise ZeroDivisionError(name)

    agent.sandbox.hook = explode
    with capture_logs() as logged:  # with its traceback
        for job in range(1, 6):
            assert await ends(agent, (await agent.submit(f"{job}.1"))[1]["id"]) == LOST
    assert "payload.broken" in [line["event"] for line in logged]
    agent.sandbox.hook = None
    await agent.completed("9.1")


async def test_a_result_that_cannot_be_stored_is_the_agents_fault(agent, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for key, where, name, fault, tries in (
        ("1.1", Folders, "seal_result", full, 1),
        ("2.1", result, "collect", short, PACK_TRIES),  # it may pass
    ):
        payload_id, process = await agent.started(key)
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fault)
            process.finish()
            before = agent.clock.monotonic()
            assert await ends(agent, payload_id) == LOST
        assert agent.clock.monotonic() - before >= (tries - 1) * RETRY_S
        await agent.until_holds("staging", "results")


@each("step", ["prepare", "start"])
async def test_a_start_that_meets_a_shortage_of_descriptors_comes_after_it(agent, step) -> None:
    await agent.fresh_server()
    met = asyncio.Event()

    def scarce(name: str) -> None:
        if name == step:
            met.set()
            short()

    agent.sandbox.hook = scarce
    _, payload = await agent.submit()
    await met.wait()
    assert await state(agent) == "Prepared"
    agent.sandbox.hook = None
    (await starts(agent)).finish()
    assert await ends(agent, payload["id"]) == COMPLETED
    assert agent.sandbox.starts == {"1.1": 1}


@each("what", ["folder", "precious"])
async def test_a_shortage_of_descriptors_costs_a_result_no_file(agent, monkeypatch, what) -> None:
    await agent.fresh_server()
    payload_id, process = await agent.started()
    process.write("folder/precious", b"p")
    real, met = open_beneath.open_component, threading.Event()

    def opening(parent: int, name: str, flags: int) -> int:
        if name == what:
            met.set()
            short()
        return real(parent, name, flags)

    with monkeypatch.context() as patch:
        patch.setattr(open_beneath, "open_component", opening)
        process.finish()
        await until(met.is_set)
        assert await state(agent) == "Running"
    assert await ends(agent, payload_id) == COMPLETED
    assert (await agent.zip(f"/retrieve/{payload_id}"))["folder/precious"] == b"p"
    await agent.until_holds("staging")


async def test_what_waits_stays_prepared_until_there_is_space(tmp_path, monkeypatch) -> None:
    async with calling(tmp_path, slots=1, min_free=100) as agent:
        with agent.sandbox.held("prepare") as at:
            for key in ("1.1", "2.1", "3.1"):
                await agent.submit(key)
            await at.wait()
        with monkeypatch.context() as patch:
            patch.setattr(Folders, "free_bytes", lambda _: 0)
            await agent.sandbox.finish("1.1", "2.1")  # either may be the first
            await agent.ended(2)
            for _ in range(5):
                await agent.clock.advance(RETRY_S)
            assert await state(agent, "3.1") == "Prepared"
            patch.setattr(SandboxWatch, "problem", AsyncMock(return_value="no space for its test"))
            status, health = await agent.call("GET", "/health")
            assert (status, health["ready"]) == (200, False), "what it has can be fetched"
            assert "must stay free" in health["message"]
        (await starts(agent, "3.1")).finish()
        assert (await agent.ended(3))["status"] == "Completed"


async def test_a_file_server_that_does_not_answer_blocks_nothing():
    checked, answer = [], threading.Event()

    def exists(path: Path) -> bool:
        checked.append(str(path))
        if str(path) == "/stale":
            raise OSError(errno.ESTALE, "Stale file handle")
        return str(path) != "/far" or answer.wait(60)

    paths = [Path("/a-near"), Path("/far"), Path("/near"), Path("/stale")]
    sources = MountSources(paths, exists)
    near_by, far, near, stale = (Grant(read_only=((path, "/x"),)) for path in paths)
    clock = SimClock()
    refreshing = asyncio.create_task(sources.refresh(clock))
    await until(lambda: "/far" in checked)
    await clock.until_asleep(TIMEOUT_S)
    await clock.advance(TIMEOUT_S)
    await refreshing
    for grant in (near_by, near):  # whichever was checked first
        assert sources.missing(grant) is None
    assert [sources.missing(one) for one in (far, stale)] == [Path("/far"), Path("/stale")]
    await clock.advance(CACHE_S)
    await asyncio.wait_for(sources.refresh(clock), 5)  # it is not waited for again
    assert checked.count("/far") == 1  # the first check still runs, and no thread is added
    answer.set()
    await until(lambda: sources.missing(far) is None)
    assert sources.missing(near) is None
    await clock.advance(CACHE_S)
    await sources.refresh(clock)
    assert checked.count("/far") == 2
    answer.clear()  # it is down again
    refreshing = asyncio.create_task(sources.refresh(clock))
    await clock.until_asleep(TIMEOUT_S)
    await clock.advance(TIMEOUT_S)
    await refreshing
    answer.set()
    assert sources.missing(far) == Path("/far"), "though it was there before"
    checked.clear()
    sources = MountSources([Path("/near")], exists)
    for count in (1, 2):
        for _ in range(20):  # many submits at once are one check
            await sources.refresh(clock)
        assert len(checked) == count
        await clock.advance(CACHE_S)
