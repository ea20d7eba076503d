"""``/livez``, ``/readyz`` and ``/health`` of both programs: what they look at, and what they say to
whom; and when the watchdog is to start a server again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs

from client_agent.run.runner import EndRequests
from client_agent.storage.folders import Folders
from server.domain.troubles import Trouble, TroubleKind
from server.lifecycle import Supervision
from server.loops.runner import Loop, Supervisor
from server.storage.scratch import FolderScratch
from shared import probe
from shared.principals import Principal, Role, Scope
from shared.probe import PATIENCE_S, Heartbeats
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from tests.kit.agent_http import calling
from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.waiting import eventually
from tests.server.front import SHOWN, Program, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROBES = ("/livez", "/readyz", "/health")


async def test_where_all_is_well_each_says_so_to_everybody(guarded, monkeypatch):
    """And no more than that to who shows no token."""
    said = {path: (await guarded.timed("GET", path)).document for path in PROBES}
    assert said["/livez"] == {"status": "ok"}
    assert said["/readyz"] == {"status": "ok", "reasons": []}
    full = {key: value for key, value in said["/health"].items() if value not in (None, "", {}, 0)}
    assert full.pop("ready", True) is True
    assert full == {"status": "ok", "database": "ok"}
    assert (await guarded.timed("GET", "/health", **SHOWN)).document["version"]
    for path in PROBES:
        head = await guarded.timed("HEAD", path)
        assert (head.status, head.body) == (200, b"")
    looks = Mock(return_value=None)
    for kind in (Folders, FolderScratch):
        monkeypatch.setattr(kind, "check_writable", looks)
    for _ in range(20):
        assert (await guarded.ask("GET", "/health")).status == 200
    assert looks.call_count <= 3, "asking often does not look at the disk often"


async def test_a_failure_of_the_database_is_a_reason_and_its_words_are_the_operators(
    guarded, monkeypatch
):
    """Until it is over."""

    # Each time a new one: a traceback grows when it is raised again.
    def failure(*_: object) -> DatabaseUnavailable:
        return DatabaseUnavailable(sqlite3.OperationalError("disk I/O error"))

    async def fail(*_: object) -> None:
        raise failure()

    with monkeypatch.context() as broken, capture_logs():  # each loop tells of it at each sweep
        broken.setattr(Database, "failure", property(failure))
        broken.setattr(Database, "write", fail)
        for _ in range(2):  # it does not come and go
            stranger = await guarded.timed("GET", "/health")
            operator = await guarded.timed("GET", "/health", **SHOWN)
            assert (stranger.status, operator.status) == (503, 503)
            assert (stranger.document["status"], b"I/O" in stranger.body) == ("error", False)
            assert "disk I/O error" in str(operator.document["message"])
            ready = await guarded.timed("GET", "/readyz", **SHOWN)
            (reason,) = ready.document["reasons"]
            assert (ready.status, b"I/O" in ready.body) == (503, False)
            assert int(ready.headers.get("retry-after", "0")) > 0
            assert reason.startswith("database")
            assert (await guarded.timed("GET", "/livez")).status == 200
    assert (await guarded.timed("GET", "/health")).status == 200


async def test_a_full_disk_is_a_reason_and_one_that_does_not_answer_delays_nothing(
    name, tmp_path, monkeypatch
):
    async with serving(name, tmp_path / "full", min_free=1 << 60) as program:
        answer = await program.timed("GET", "/readyz")
        assert (answer.status, answer.document["reasons"]) == (503, ["disk_full"])
        assert (await program.timed("GET", "/livez")).status == 200
    release = threading.Event()
    async with serving(name, tmp_path / "silent") as program:
        for kind in (Folders, FolderScratch):
            monkeypatch.setattr(kind, "check_writable", lambda _: release.wait(60))
        try:
            async with asyncio.timeout(20):
                assert (await program.timed("GET", "/livez")).status == 200
                ready = await program.timed("GET", "/readyz")
                assert ready.status == 503
                assert ready.document["reasons"] in (["data_folder_silent"], ["data_folder"])
                await program.timed("GET", "/health")
        finally:
            release.set()


async def test_a_server_without_an_agent_that_answers_takes_uploads_until_it_stops(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        program = Program.of(caller)
        answer = await program.ask("GET", "/readyz")
        assert (answer.status, answer.document["status"]) == (200, "ok")
        caller.server.wakeups.close()
        stopping = await program.ask("GET", "/readyz")
        assert (stopping.status, stopping.document["reasons"]) == (503, ["stopping"])


async def test_users_see_neither_agents_nor_what_is_wrong(tmp_path):
    principals = {
        "operator": Principal("boss", Role.OPERATOR),
        "reader": Principal("reader", Role.OPERATOR, scopes=frozenset({Scope.READ})),
        "user": Principal("ada", Role.USER, "ada"),
        "portal": Principal("portal", Role.PORTAL),
        "agent": Principal("node", Role.AGENT),
    }
    given: dict[str, Any] = {"principals": principals, "min_free": 1 << 60}
    async with driving(tmp_path, FakeOrchestrator(), **given) as caller:
        (agent,) = caller.server.clients
        for token in ("", *principals):
            shown = {"Authorization": f"Bearer {token}"} if token else {}
            answers = [await Program.of(caller).ask("GET", path, **shown) for path in PROBES]
            text = b" ".join(one.body for one in answers)
            is_operator = token == "operator"
            assert (agent.encode() in text) == is_operator, token
            assert (b"the disk is full" in text) == is_operator, token
            assert str(tmp_path).encode() not in text


async def test_an_agent_that_drains_takes_nothing_new(tmp_path):
    asked = EndRequests()
    async with calling(tmp_path, asked=asked) as caller:
        asked.drain.set()
        program = Program.of(caller, "agent")
        answer = await eventually(
            lambda: program.timed("GET", "/readyz"), lambda it: it.status == 503
        )
        assert answer.document["reasons"] == ["draining"]


# -- what is for the watchdog


async def test_a_loop_whose_sweep_does_not_end_is_for_the_watchdog_unless_a_disk_is_silent():
    """Sweeps that fail are not: they do for as long as a disk is full."""
    clock, goes_on = SimClock(), asyncio.Event()
    troubles: list[Trouble] = []
    goes_on.set()

    async def sweep() -> int:
        await goes_on.wait()
        raise RuntimeError("the disk is full")

    loop = Loop("cleaner", SimpleNamespace(run_once=sweep), 10.0, asyncio.Event(), clock)
    context = SimpleNamespace(troubles=AsyncMock(side_effect=lambda: troubles), clock=clock)
    supervisor = Supervisor([loop], [], [])
    server: Any = SimpleNamespace(context=context, supervisor=supervisor)
    supervision = Supervision(server)
    supervisor.start()
    with capture_logs():  # to show all failures costs more than the rest
        await clock.advance(2 * PATIENCE_S)
    assert await supervision.alive()
    goes_on.clear()
    await clock.advance(PATIENCE_S)
    assert await supervision.alive()
    await clock.advance(60)
    with capture_logs() as lines:
        troubles = [Trouble(TroubleKind.DATA_FOLDER_SILENT, "a start does not help it")]
        assert await supervision.alive()
        troubles = [Trouble(TroubleKind.DISK_FULL, "the disk is full")]
        assert not await supervision.alive()
        assert not await supervision.alive()
    assert lines == [{"event": "loop.stuck", "loops": ["cleaner"], "log_level": "error"}]
    goes_on.set()
    with capture_logs():
        await supervisor.stop()


async def test_a_heartbeat_that_stops_and_a_task_that_has_ended_are_found() -> None:
    clock = SimClock()
    beats = Heartbeats(clock)
    tick = beats.add("retention", 60)
    beats.check("workers", lambda: clock.monotonic() < 900)
    await clock.advance(60 + PATIENCE_S)
    assert beats.stuck() == []
    await clock.advance(1)
    assert beats.stuck() == ["retention"]
    tick()
    assert beats.stuck() == []
    await clock.advance(900)
    assert beats.stuck() == ["retention", "workers"]


async def test_what_keeps_it_from_new_work_is_logged_when_it_begins_changes_and_is_over() -> None:
    clock, stop = SimClock(), asyncio.Event()
    found: dict[str, str] = {"draining": "as its operator asked"}

    async def look() -> dict[str, str]:
        if "defect" in found:
            raise RuntimeError
        return dict(found)

    with capture_logs() as lines:
        watching = asyncio.create_task(probe.watch(look, stop, clock))
        await clock.advance(60)
        found["disk_full"] = "the disk is full"
        await clock.advance(60)
        found["defect"] = ""
        await clock.advance(probe.LOOK_EVERY_S)
        found.clear()
        await clock.advance(60)
        stop.set()
        await watching
    lost, unknown, regained = lines
    assert (lost["event"], lost["log_level"]) == ("readiness.lost", "error")
    assert (lost["reasons"], lost["why"]) == (["disk_full"], "the disk is full")
    assert unknown["event"] == "readiness.unknown"
    assert (regained["event"], regained["log_level"]) == ("readiness.regained", "info")
