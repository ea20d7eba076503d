"""The audit trail: what was added is kept, in order, once, and until it expires."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.stages import audit
from server.stages.audit import AuditTrail
from server.store.audit import AuditEntry, AuditFilter, SqlAudit
from server.store.migrations import MIGRATIONS
from shared.clock import SECOND, yield_to_loop
from shared.principals import Role
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from tests.kit.clock import SimClock

DAY_S = 86_400
ALL = AuditFilter()
LAST = 2**62


class Records(SqlAudit):
    """The real ones, which can fail or wait."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.fails = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.sizes: list[int] = []

    async def keep(self, entries: Sequence[AuditEntry]) -> None:
        await self.may_go_on.wait()
        if self.fails:
            raise DatabaseUnavailable(sqlite3.OperationalError("disk is full"))
        self.sizes.append(len(entries))
        await super().keep(entries)


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
async def records(tmp_path: Path, clock: SimClock) -> AsyncIterator[Records]:
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS, clock)
    yield Records(database)
    await database.close()


@pytest.fixture
def trail(records: Records, clock: SimClock) -> AuditTrail:
    return AuditTrail(records, clock, DAY_S)


def entry(number: int = 0, **fields: Any) -> AuditEntry:
    start: dict[str, Any] = {
        "at": 1_800_000_000 * SECOND,
        "principal": "ann",
        "role": Role.USER,
        "token_id": None,
        "acts_as": None,
        "action": "POST /upload",
        "target": str(number),
        "status": 201,
        "code": None,
        "peer": "10.0.0.1",
        "request_id": f"r{number}",
    }
    return AuditEntry(**start | fields)


async def targets(trail: AuditTrail, which: AuditFilter = ALL) -> list[str]:
    return [one.target for one in await trail.page(which, 9_999, LAST)]


async def test_entries_are_kept_as_they_are_and_together(
    trail: AuditTrail, records: Records
) -> None:
    added = [entry(1), entry(2, role=None, code="not_allowed", left_out=3), entry(3, acts_as="x")]
    for one in added:
        trail.add(one)
    assert await trail.write() == 3
    found = list(await records.page(ALL, 9, LAST))
    assert [replace(one, seq=0) for one in reversed(found)] == added
    assert [one.seq for one in found] == [3, 2, 1]
    assert records.sizes == [3]
    assert await trail.write() == 0


async def test_whoever_waits_for_an_entry_waits_for_the_write_that_has_begun(
    trail: AuditTrail, records: Records
) -> None:
    trail.add(entry(1))
    records.may_go_on.clear()
    first = asyncio.create_task(trail.run_once())
    await yield_to_loop()
    second = asyncio.create_task(trail.write())
    for _ in range(10):
        await yield_to_loop()
    assert not second.done()
    records.may_go_on.set()
    assert (await first, await second) == (1, 0)


async def test_what_cannot_be_kept_is_kept_later(trail: AuditTrail, records: Records) -> None:
    records.fails = True
    with capture_logs() as lines:
        for number in (1, 2):
            trail.add(entry(number))
            assert await trail.write() == 0
        records.fails = False
        assert await trail.write() == 2
    assert [line["event"] for line in lines] == ["audit.not_written", "audit.written_late"]
    assert await targets(trail) == ["2", "1"]


async def test_what_waits_is_bounded_and_the_oldest_are_dropped(
    trail: AuditTrail, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_MOST", 3)
    monkeypatch.setattr(audit, "_AT_ONCE", 2)
    for number in range(5):
        trail.add(entry(number))
    with capture_logs() as lines:
        await trail.write()
    assert lines[0]["dropped"] == 2
    assert await targets(trail) == ["4", "3", "2"]
    assert records.sizes == [2, 1]


async def test_entries_expire(trail: AuditTrail, records: Records, clock: SimClock) -> None:
    trail.add(entry(1, at=clock.now()))
    await clock.advance(DAY_S / 2)
    trail.add(entry(2, at=clock.now()))
    await trail.run_once()
    assert await targets(trail) == ["2", "1"]
    await clock.advance(DAY_S / 2 + 1)
    await trail.run_once()
    assert await targets(trail) == ["2"]
    forever = AuditTrail(records, clock, 0)
    await clock.advance(100 * DAY_S)
    await forever.run_once()
    assert await targets(forever) == ["2"]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (AuditFilter(principal="bob"), ["2"]),
        (AuditFilter(acts_as="cleo"), ["3"]),
        (AuditFilter(token_id="t"), ["4"]),
        (AuditFilter(action="CANCEL"), ["4"]),
        (AuditFilter(action="%"), []),
        (AuditFilter(action="_"), []),
        (AuditFilter(target="3"), ["3"]),
        (AuditFilter(since=1_800_000_001 * SECOND), ["3"]),
        (AuditFilter(until=1_800_000_001 * SECOND), ["4", "2", "1"]),
    ],
)
async def test_a_page_has_what_was_asked_for(
    trail: AuditTrail, which: AuditFilter, expected: list[str]
) -> None:
    trail.add(entry(1))
    trail.add(entry(2, principal="bob"))
    trail.add(entry(3, acts_as="cleo", at=1_800_000_001 * SECOND))
    trail.add(entry(4, token_id="t", action="POST /api/v1/jobs/{id}/cancel"))
    assert await targets(trail, which) == expected
    (last,) = await trail.page(ALL, 1, LAST)
    assert [one.target for one in await trail.page(ALL, 2, last.seq)] == ["3", "2"]
