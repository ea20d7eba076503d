"""``/livez``, ``/readyz`` and ``/health`` of both programs: what they look at, and what they say to
whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client_agent.run.runner import EndRequests
from client_agent.storage.folders import Folders
from server.storage.scratch import FolderScratch
from shared.principals import Principal, Role, Scope
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from tests.kit import raw_http
from tests.kit.agent_http import calling
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import Answer
from tests.kit.server_http import driving
from tests.kit.waiting import eventually

TOKEN = "a-token-of-an-operator"
PROBES = ("/livez", "/readyz", "/health")


class Program:
    def __init__(self, caller: Any) -> None:
        self.caller = caller
        self.port = int(str(caller.url).rpartition(":")[2].strip("/"))

    async def ask(self, path: str, method: str = "GET", token: str = "") -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        asked = asyncio.create_task(raw_http.ask(self.port, method, path, **headers))
        clock = getattr(self.caller, "clock", None)  # an agent's is simulated
        while clock is not None and not asked.done():
            await clock.advance(0.1)
            await asyncio.wait([asked], timeout=0.01)
        return await asked


@contextlib.asynccontextmanager
async def serving(name: str, folder: Path, **settings: Any) -> AsyncIterator[Program]:
    async with contextlib.AsyncExitStack() as stack:
        program: Any = (
            driving(folder, FakeOrchestrator(), **settings)
            if name == "server"
            else calling(folder, **settings)
        )
        yield Program(await stack.enter_async_context(program))


@pytest.fixture(params=["server", "agent"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def guarded(name: str, tmp_path: Path) -> AsyncIterator[Program]:
    async with serving(name, tmp_path, tokens=[TOKEN]) as program:
        yield program


async def test_where_all_is_well_each_says_so_to_everybody(guarded: Program) -> None:
    said = {path: (await guarded.ask(path)).document for path in PROBES}
    assert said["/livez"] == {"status": "ok"}
    assert said["/readyz"] in ({"status": "ok", "reasons": []},)
    assert said["/health"]["status"] == "ok"
    for path in PROBES:
        head = await guarded.ask(path, "HEAD")
        assert (head.status, head.body) == (200, b"")


async def test_a_failure_of_the_database_is_a_reason_and_its_words_are_the_operators(
    guarded: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = DatabaseUnavailable(sqlite3.OperationalError("disk I/O error"))
    monkeypatch.setattr(Database, "failure", property(lambda _: failure))

    async def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(Database, "write", fail)
    stranger, operator = await guarded.ask("/health"), await guarded.ask("/health", token=TOKEN)
    assert (stranger.status, operator.status) == (503, 503)
    assert b"I/O" not in stranger.body
    assert b"disk I/O error" in operator.body
    ready = await guarded.ask("/readyz", token=TOKEN)
    (reason,) = ready.document["reasons"]
    assert (ready.status, b"I/O" in ready.body) == (503, False)
    assert int(ready.headers.get("retry-after", "0")) > 0
    assert reason.startswith("database")
    assert (await guarded.ask("/livez")).status == 200
    monkeypatch.undo()


async def test_a_full_disk_is_a_reason_not_to_send_uploads_here(name: str, tmp_path: Path) -> None:
    async with serving(name, tmp_path, min_free=1 << 60) as program:
        answer = await program.ask("/readyz")
        assert (answer.status, answer.document["reasons"]) == (503, ["disk_full"])
        assert (await program.ask("/livez")).status == 200


async def test_a_disk_that_does_not_answer_delays_none_of_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    async with serving(name, tmp_path) as program:
        for kind in (Folders, FolderScratch):
            monkeypatch.setattr(kind, "check_writable", lambda _: release.wait(60))
        try:
            async with asyncio.timeout(20):
                assert (await program.ask("/livez")).status == 200
                ready = await program.ask("/readyz")
                assert ready.status == 503
                assert ready.document["reasons"] in (["data_folder_silent"], ["data_folder"])
                await program.ask("/health")
        finally:
            release.set()


async def test_a_server_without_an_agent_that_answers_takes_uploads(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        program = Program(caller)
        answer = await program.ask("/readyz")
        assert (answer.status, answer.document["status"]) == (200, "ok")
        caller.server.wakeups.close()
        stopping = await program.ask("/readyz")
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
        program = Program(caller)
        for token in ("", *principals):
            answers = [await program.ask(path, token=token) for path in PROBES]
            text = b" ".join(one.body for one in answers)
            is_operator = token == "operator"
            assert (agent.encode() in text) == is_operator, token
            assert (b"the disk is full" in text) == is_operator, token
            assert str(tmp_path).encode() not in text


async def test_an_agent_that_drains_takes_nothing_new(tmp_path: Path) -> None:
    asked = EndRequests()
    async with calling(tmp_path, asked=asked) as caller:
        asked.drain.set()
        program = Program(caller)
        answer = await eventually(lambda: program.ask("/readyz"), lambda it: it.status == 503)
        assert answer.document["reasons"] == ["draining"]
