"""Who did what, as operators see it: kept in order, once, until it expires."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from structlog.testing import capture_logs

from server.stages import audit as stage
from server.stages.audit import AuditTrail
from server.store import audit
from server.store.audit import AuditEntry, AuditFilter
from server.store.migrations import MIGRATIONS
from server.web.site import SITE, CsrfTokens
from shared.clock import yield_to_loop
from shared.principals import Role
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable
from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.store import core, settings
from tests.kit.waiting import eventually
from tests.kit.warm import Place
from tests.server.access import OPERATOR, PRINCIPALS, Crowd, crowd

__all__ = ["OPERATOR", "PRINCIPALS", "crowd"]

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
warm_module = pytest.mark.asyncio(loop_scope="module")


async def trail(place: Place, **query: str) -> list[dict[str, Any]]:
    """The oldest first."""
    return [*reversed((await place.api("GET", "/audit", **query))["items"])]


def said(entries: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(one[name] for name in names) for one in entries]


@warm_module
async def test_what_changes_something_is_in_the_trail_and_reads_are_not(crowd: Crowd) -> None:
    place, name = crowd.place, crowd.place.service
    pause = f"/api/v1/services/{name}/pause"
    before = max((one["seq"] for one in await trail(place)), default=0)
    job = await crowd.made("ann", "ann")
    other = await crowd.made("portal as bob", "bob")
    await place.job(job)
    await crowd.ask("ann", "GET", f"/api/v1/jobs/{job}")
    for one in (job, other):
        await crowd.ask("ann", "POST", f"/api/v1/jobs/{one}/cancel")
    await crowd.ask("ann", "POST", "/api/v1/jobs/bulk", {"action": "delete", "ids": [job]})
    await crowd.ask("admin", "POST", pause)
    # What an operator changes is there before the answer; the page would write what waits.
    database = place.server.context.core.database
    (entry,) = await database.read(audit.page, AuditFilter(), 1, 2**62)
    assert entry.action == "POST /api/v1/services/{name}/pause"
    await crowd.ask("ann", "POST", pause)
    await crowd.ask("ann", "POST", "/api/v1/nowhere")
    made = await place.api("POST", "/tokens", {"name": "x", "role": "user"})
    mine = await crowd.made(made["token"], "x")
    await place.api("DELETE", f"/tokens/{made['id']}")
    found = [one for one in await trail(place) if one["seq"] > before]
    assert said(found, "principal", "action", "target", "status", "code") == [
        ("ann-laptop", "POST /upload", str(job), 201, None),
        ("portal", "POST /upload", str(other), 201, None),
        ("ann-laptop", "POST /api/v1/jobs/{id}/cancel", str(job), 200, None),
        ("ann-laptop", "POST /api/v1/jobs/{id}/cancel", str(other), 404, "job_not_found"),
        ("ann-laptop", "POST /api/v1/jobs/bulk", f"delete {job}", 200, None),
        ("admin", "POST /api/v1/services/{name}/pause", name, 200, None),
        ("ann-laptop", "POST /api/v1/services/{name}/pause", name, 403, "not_allowed"),
        ("ann-laptop", "POST (no such route)", "", 404, "not_found"),
        ("admin", "POST /api/v1/tokens", made["id"], 201, None),
        ("x", "POST /upload", str(mine), 201, None),
        ("admin", "DELETE /api/v1/tokens/{token}", made["id"], 200, None),
    ]
    assert said(found, "acts_as", "peer", "role")[1] == ("bob", "127.0.0.1", "portal")
    assert len({one["request_id"] for one in found}) == len(found)
    assert made["token"] not in str(found)
    # What an operator asks for, by the words of the query.
    for query, targets in (
        ({"token": made["id"]}, [mine]),
        ({"action": "UPLOAD", "principal": "portal"}, [other]),
        ({"user": "bob"}, [other]),
        ({"target": str(job), "action": "cancel", "since": "1h"}, [job]),
        ({"target": str(job), "until": "1h"}, []),
        ({"target": made["id"], "since": found[-1]["at"]}, [made["id"]]),
        ({"target": made["id"], "until": found[-1]["at"]}, [made["id"]]),
        ({"action": "%"}, []),
        ({"action": "_"}, []),
    ):
        assert said(await trail(place, **query), "target") == [(str(one),) for one in targets]
    first = await place.api("GET", "/audit", limit="2", action="upload")
    rest = await place.api("GET", "/audit", limit="1", action="upload", cursor=first["next"])
    both = [*first["items"], *rest["items"]]
    assert [one["target"] for one in both] == [str(one) for one in (mine, other, job)]
    for wrong in ("since=yesterday", "limit=0", "cursor=x", "tokn=1", f"user={'a' * 65}"):
        assert (await place.ask("GET", f"/api/v1/audit?{wrong}"))[0] == 400, wrong


@warm_module
async def test_strangers_fill_neither_trail_nor_log_whatever_the_answer_is(crowd: Crowd) -> None:
    place, now, found = crowd.place, asyncio.get_running_loop().time, list[Any]()
    cookie = f"{place.server.application[SITE].cookie('browser')}=x"
    for path, size, status in (
        ("/api/v1/tokens", 100, 401),
        ("/login", 10_000, 413),  # no more is needed than a look at its length
        ("/login", 100, 500),
    ):
        before, began = len(found), now()
        with pytest.MonkeyPatch.context() as patch, capture_logs() as lines:
            patch.setattr(CsrfTokens, "good", None)  # a call of it fails
            for _ in range(60):
                form = {"token": "x" * size}
                said = await crowd.ask("", "POST", path, urlencode(form), Cookie=cookie, **FORM)
                assert said.status == status
        found = await trail(place, principal="anonymous", limit="500")
        most = 11 + 10 * (now() - began)
        assert len(found) - before <= most, path
        logged = Counter(line["event"] for line in lines)
        assert all(count <= most + 1 for count in logged.values()), logged

    async def refused() -> list[Any]:
        with capture_logs() as lines:
            await crowd.ask("", "POST", "/api/v1/tokens", "", **FORM)
        return [*lines]

    await eventually(refused, bool)  # some are logged: ten in a second
    assert len(found) >= 10
    assert len(found) + sum(one["left_out"] for one in found) <= 180


async def test_the_trail_outlives_the_server_and_sees_behind_proxies(tmp_path: Path) -> None:
    for times in (1, 2):
        async with driving(tmp_path, FakeOrchestrator(), trusted_proxies="127.0.0.1") as client:
            headers = {"X-Forwarded-For": "203.0.113.9, 192.0.2.7"}
            url = f"{client.url}/api/v1/services/my_service/pause"
            async with client.session.post(url, headers=headers) as answer:
                assert answer.status == 200
            async with client.session.get(f"{client.url}/api/v1/audit") as answer:
                found = (await answer.json())["items"]
            assert [one["peer"] for one in found] == ["192.0.2.7"] * times


# -- how it is written

DAY_S = 86_400


class Records(Database):
    """The real one, where entries can fail or wait."""

    fails = False

    def prepare(self) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.kept: list[int] = []

    async def write(self, work: Any, *args: Any, **how: Any) -> Any:  # type: ignore[override]
        if work is audit.keep:
            await self.may_go_on.wait()
            if self.fails:
                raise DatabaseUnavailable(sqlite3.OperationalError("disk is full"))
            self.kept.append(len(args[0]))
        return await super().write(work, *args, **how)


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    database = await Records.open(tmp_path / "server.sqlite", MIGRATIONS)
    assert isinstance(database, Records)
    database.prepare()
    yield database
    await database.close()


def written(records: Records, clock: SimClock | None = None, days: float = 1) -> AuditTrail:
    kept = settings(audit_expires_after=days * DAY_S)
    return AuditTrail(core(database=records, clock=clock or SimClock(), settings=kept))


def entry(number: int, at: int = 0) -> AuditEntry:
    what = "POST /upload", str(number), 201, None, "::1", f"r{number}"
    return AuditEntry(at, "ann", Role.USER, None, None, *what)


async def targets(trail: AuditTrail) -> list[str]:
    return [one.target for one in await trail.page(AuditFilter(), 9_999, 2**62)]


async def test_who_waits_for_an_entry_waits_for_a_write_under_way(records: Records) -> None:
    trail = written(records)
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


async def test_what_is_cancelled_while_it_writes_is_written_once(records: Records) -> None:
    trail = written(records)
    for number, records.fails in ((1, False), (2, True)):
        trail.add(entry(number))
        records.may_go_on.clear()
        writing = asyncio.create_task(trail.write())
        for _ in range(3):
            await yield_to_loop()
        writing.cancel()
        await asyncio.wait([writing])
        records.may_go_on.set()
        await trail.write()
        records.fails = False
        assert await targets(trail) == ["2", "1"][-number:]


async def test_what_cannot_be_kept_is_kept_later_bounded_without_the_oldest(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_MOST", 3)
    monkeypatch.setattr(stage, "_AT_ONCE", 2)
    trail = written(records)
    records.fails = True
    with capture_logs() as lines:
        for number in range(2):
            trail.add(entry(number))
            assert await trail.write() == 0
        for number in range(2, 5):
            trail.add(entry(number))
        records.fails = False
        await trail.write()
    failed = "audit.not_written"
    assert [line["event"] for line in lines] == [failed, failed, "audit.written_late"]
    assert lines[-1]["dropped"] == 2
    assert await targets(trail) == ["4", "3", "2"]
    assert records.kept == [2, 1]


async def test_entries_expire(records: Records) -> None:
    clock = SimClock()
    trail = written(records, clock)
    trail.add(entry(1, at=clock.now()))
    await clock.advance(DAY_S / 2)
    trail.add(entry(2, at=clock.now()))
    await trail.run_once()
    assert await targets(trail) == ["2", "1"]
    await clock.advance(DAY_S / 2 + 1)
    await trail.run_once()
    assert await targets(trail) == ["2"]
    await clock.advance(100 * DAY_S)
    await written(records, clock, days=0).run_once()
    assert await targets(trail) == ["2"], "0 is for ever"
