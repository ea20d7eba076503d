"""Reads that are answered from memory say what the database would say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from client_agent.payloads import reads
from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.payload import Outcome, Payload
from client_agent.payloads.store import MIGRATIONS, Payloads
from shared.clock import yield_to_loop
from shared.ids import AttemptKey
from shared.sqlite.database import Database
from shared.wire import (
    ArrayTask,
    LiveDoc,
    PayloadState,
    Progress,
    Reason,
    ResultInfo,
    RetryLater,
    Usage,
)
from tests.kit.agent import new_payload
from tests.kit.clock import SimClock

EVERYTHING: dict[str, Any] = {
    "heartbeat_timeout_s": 5.0,
    "folder": "part/",
    "entry": "go.sh",
    "array": ArrayTask(index=3, file="lines"),
    "env": {"TOKEN": "secret"},
    "inputs_file": "inputs",
    "on_shutdown": "continue",
    "outputs": ("*.txt",),
    "result_files": "changed",
    "try_number": 3,
}
ENDED = Outcome(
    PayloadState.FAILED,
    reason=Reason.EXIT_CODE,
    message="it ended",
    exit_code=3,
    stderr_tail="oh",
    usage=Usage(wall_s=1.5, cpu_s=0.25, peak_memory_bytes=7),
    warnings=("one", "two"),
    result=ResultInfo(size=9, sha256="ab", stdout_bytes=1, stderr_bytes=2, children=1),
    live=LiveDoc(progress=Progress(current=1, total=2), output={"a": "b"}),
    retry_later=RetryLater(after_s=3.0),
)


@pytest.fixture
async def database(tmp_path):
    opened = await Database.open(tmp_path / "agent.sqlite", MIGRATIONS)
    yield opened
    await opened.close()


@pytest.fixture
async def payloads(database):
    return await Payloads.open(database, SimClock())


async def from_database(database: Database, after: int = 0) -> list[Payload]:
    """What one who has just opened it reads."""
    opened = await Payloads.open(database, SimClock())
    return list(await opened.changed_after(after, None))


async def agree(payloads: Payloads, database: Database) -> None:
    stored = await from_database(database)
    assert list(await payloads.changed_after(0, None)) == stored
    assert await payloads.find_all([one.id for one in stored]) == {one.id: one for one in stored}


async def test_what_was_just_written_is_read_from_memory_as_it_is_stored(payloads, database):
    await payloads.add(replace(new_payload("1.1"), **EVERYTHING))
    await payloads.add(replace(new_payload(), server=None, key=None))
    await agree(payloads, database)
    for payload_id in (1, 2):
        await payloads.start(payload_id, 7, "/work", {"memory": "hard"})
        await agree(payloads, database)
        await payloads.end(payload_id, PayloadState.RUNNING, ENDED)
        await agree(payloads, database)
    await payloads.acknowledge(1, Caller())
    await agree(payloads, database)
    assert (await payloads.get(1)).state is PayloadState.CLEANED
    await payloads.expire(0.0)
    await agree(payloads, database)
    await payloads.prune(0.0)
    assert await payloads.find_all([1, 2]) == {}


async def test_what_changed_is_not_read_from_the_database(payloads, database, monkeypatch):
    reads: list[str] = []
    rows = database.rows

    async def counted(sql, params=None):
        reads.append(sql)
        return await rows(sql, params)

    monkeypatch.setattr(database, "rows", counted)
    await payloads.add(new_payload())
    await payloads.start(1, 7, "/work", {})
    await payloads.end(1, PayloadState.RUNNING, ENDED)
    assert (await payloads.get(1)).state is PayloadState.FAILED
    assert [one.id for one in await payloads.changed_after(0, None)] == [1]
    assert await payloads.changed_after(0, "another") == []
    assert reads == []


async def test_what_was_there_before_the_start_is_read_and_then_known(payloads, database):
    await payloads.add(replace(new_payload("1.1"), **EVERYTHING))
    later = await Payloads.open(database, SimClock())
    assert (await later.get(1)).array == EVERYTHING["array"]
    await later.start(1, 7, "/work", {})
    await agree(later, database)


async def test_the_oldest_of_very_many_are_read_from_the_database(payloads, database, monkeypatch):
    monkeypatch.setattr(reads, "KEPT", 3)
    for number in range(1, 8):
        await payloads.add(new_payload(f"{number}.1"))
    await payloads.start(2, 7, "/work", {})
    for after in range(9):
        assert list(await payloads.changed_after(after, None)) == await from_database(
            database, after
        )
        some = await payloads.changed_after(after, None, 2)
        assert list(some) == (await from_database(database, after))[:2]
    await agree(payloads, database)


async def test_a_change_whose_caller_is_cancelled_is_known_all_the_same(payloads, database):
    await payloads.add(new_payload())
    starting = asyncio.create_task(payloads.start(1, 7, "/work", {}))
    await yield_to_loop()  # it is handed in
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await payloads.settle("server-one", AttemptKey(9, 1))  # committed later
    assert (await payloads.get(1)).state is PayloadState.RUNNING
    assert payloads.seq == 2
    await agree(payloads, database)
