"""``/livez``, ``/readyz`` and ``/health`` of both programs: what they look at, and what they say to
whom.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from client_agent.run.runner import EndRequests
from client_agent.storage.folders import Folders
from server.storage.scratch import FolderScratch
from shared.principals import Principal, Role, Scope
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from tests.kit.agent_http import calling
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import Answer
from tests.kit.server_http import driving
from tests.kit.waiting import eventually
from tests.server.front import TOKEN, Program, guarding, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROBES = ("/livez", "/readyz", "/health")
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module", params=["server", "agent"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(name: str, module_folder: Path) -> AsyncIterator[Program]:
    async with guarding(name, module_folder / name) as program:
        yield program


async def get(program: Program, path: str, **headers: str) -> Answer:
    return await program.timed("GET", path, **headers)


async def test_where_all_is_well_each_says_so_to_everybody(guarded: Program) -> None:
    said = {path: (await get(guarded, path)).document for path in PROBES}
    assert said["/livez"] == {"status": "ok"}
    assert said["/readyz"] in ({"status": "ok", "reasons": []},)
    assert said["/health"]["status"] == "ok"
    for path in PROBES:
        head = await guarded.timed("HEAD", path)
        assert (head.status, head.body) == (200, b"")


async def test_a_failure_of_the_database_is_a_reason_and_its_words_are_the_operators(
    guarded: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            stranger = await get(guarded, "/health")
            operator = await get(guarded, "/health", **OPERATOR)
            assert (stranger.status, operator.status) == (503, 503)
            assert (stranger.document["status"], b"I/O" in stranger.body) == ("error", False)
            assert "disk I/O error" in str(operator.document["message"])
            ready = await get(guarded, "/readyz", **OPERATOR)
            (reason,) = ready.document["reasons"]
            assert (ready.status, b"I/O" in ready.body) == (503, False)
            assert int(ready.headers.get("retry-after", "0")) > 0
            assert reason.startswith("database")
            assert (await get(guarded, "/livez")).status == 200
    assert (await get(guarded, "/health")).status == 200


async def test_a_full_disk_is_a_reason_not_to_send_uploads_here(name: str, tmp_path: Path) -> None:
    async with serving(name, tmp_path, min_free=1 << 60) as program:
        answer = await get(program, "/readyz")
        assert (answer.status, answer.document["reasons"]) == (503, ["disk_full"])
        assert (await get(program, "/livez")).status == 200


async def test_a_disk_that_does_not_answer_delays_none_of_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    async with serving(name, tmp_path) as program:
        for kind in (Folders, FolderScratch):
            monkeypatch.setattr(kind, "check_writable", lambda _: release.wait(60))
        try:
            async with asyncio.timeout(20):
                assert (await get(program, "/livez")).status == 200
                ready = await get(program, "/readyz")
                assert ready.status == 503
                assert ready.document["reasons"] in (["data_folder_silent"], ["data_folder"])
                await get(program, "/health")
        finally:
            release.set()


async def test_a_server_without_an_agent_that_answers_takes_uploads(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        program = Program("server", int(caller.url.rpartition(":")[2]), caller)
        answer = await get(program, "/readyz")
        assert (answer.status, answer.document["status"]) == (200, "ok")
        caller.server.wakeups.close()
        stopping = await get(program, "/readyz")
        assert (stopping.status, stopping.document["reasons"]) == (503, ["stopping"])


async def test_users_see_neither_agents_nor_what_is_wrong(tmp_path: Path) -> None:
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
        program = Program("server", int(caller.url.rpartition(":")[2]), caller)
        for token in ("", *principals):
            answers = [
                await get(program, path, **({"Authorization": f"Bearer {token}"} if token else {}))
                for path in PROBES
            ]
            text = b" ".join(one.body for one in answers)
            is_operator = token == "operator"
            assert (agent.encode() in text) == is_operator, token
            assert (b"the disk is full" in text) == is_operator, token
            assert str(tmp_path).encode() not in text


async def test_an_agent_that_drains_takes_nothing_new(tmp_path: Path) -> None:
    asked = EndRequests()
    async with calling(tmp_path, asked=asked) as caller:
        asked.drain.set()
        program = Program("agent", caller.port, caller)
        answer = await eventually(lambda: get(program, "/readyz"), lambda it: it.status == 503)
        assert answer.document["reasons"] == ["draining"]
