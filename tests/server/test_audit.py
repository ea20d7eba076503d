"""Who did what, as operators see it: kept in order, once, until it expires."""

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
from server.web.site import SITE, CsrfTokens
from shared.clock import SECOND, yield_to_loop
from shared.principals import Principal, Role
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.warm import Place

warm_module = pytest.mark.asyncio(loop_scope="module")
OPERATOR, ANN, PORTAL = (letter * 20 for letter in "oap")
PRINCIPALS = {
    OPERATOR: Principal("admin", Role.OPERATOR),
    ANN: Principal("ann-laptop", Role.USER, "ann"),
    PORTAL: Principal("portal", Role.PORTAL),
}


async def ask(
    place: Place, method: str, path: str, token: str = OPERATOR, json: Any = None, **headers: str
) -> tuple[int, Any]:
    given = {"Authorization": f"Bearer {token}", **headers}
    return await place.ask(method, path, json=json, headers=given)


async def upload(place: Place, token: str, user: str, **headers: str) -> int:
    given = {"Authorization": f"Bearer {token}", **headers}
    status, answer = await place.posted(None, given, user_id=user)
    assert status == 201, answer
    return int(answer["id"])


async def trail(place: Place, query: str = "") -> list[dict[str, Any]]:
    """All entries of this test, the oldest first."""
    status, page = await ask(place, "GET", f"/api/v1/audit{query}")
    assert status == 200, page
    return [*reversed(page["items"])]


async def last(place: Place) -> int:
    return max((one["seq"] for one in await trail(place)), default=0)


def said(entries: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(one[name] for name in names) for one in entries]


@warm_module
async def test_what_changes_something_is_in_the_trail_and_reads_are_not(place: Place) -> None:
    before, service = await last(place), f"/api/v1/services/{place.service}"
    job = await upload(place, ANN, "ann")
    other = await upload(place, PORTAL, "bob", **{"Ferryman-Act-As": "bob"})
    await place.job(job)
    await ask(place, "GET", f"/api/v1/jobs/{job}", ANN)
    await ask(place, "POST", f"/api/v1/jobs/{job}/cancel", ANN)
    await ask(place, "POST", f"/api/v1/jobs/{other}/cancel", ANN)
    await ask(place, "POST", "/api/v1/jobs/bulk", ANN, {"action": "delete", "ids": [job]})
    await ask(place, "POST", f"{service}/pause")
    # What an operator changes is there before the answer; the page would write what waits.
    (entry,) = await place.server.context.audit._records.page(AuditFilter(), 1, 2**62)
    assert entry.action == "POST /api/v1/services/{name}/pause"
    await ask(place, "POST", f"{service}/pause", ANN)
    await ask(place, "POST", "/api/v1/nowhere", ANN)
    _, made = await ask(place, "POST", "/api/v1/tokens", json={"name": "x", "role": "user"})
    mine = await upload(place, made["token"], "x")
    await ask(place, "DELETE", f"/api/v1/tokens/{made['id']}")
    found = [one for one in await trail(place) if one["seq"] > before]
    name = place.service
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
    assert said(await trail(place, f"?token={made['id']}"), "target") == [(str(mine),)]
    assert made["token"] not in str(found)


@warm_module
async def test_refusals_that_anybody_can_cause_do_not_fill_the_trail(place: Place) -> None:
    before, began = await last(place), asyncio.get_running_loop().time()
    for _ in range(40):
        status, _ = await ask(place, "POST", "/api/v1/tokens", "no-token-that-is-known")
        assert status == 401
    found = await trail(place, "?principal=anonymous")
    refused = [one for one in found if one["seq"] > before]
    most = 11 + 10 * (asyncio.get_running_loop().time() - began)
    assert 5 <= len(refused) <= most, "those of other tests count, too"
    assert refused[0]["code"] == "not_allowed"
    assert sum(one["left_out"] for one in refused) <= 40 - len(refused)


@each("defect", [False, True])
async def test_strangers_fill_neither_trail_nor_log_whatever_the_answer_is(
    tmp_path: Path, defect: bool
) -> None:
    # The first form needs no more than a look at its length, the second one is read.
    form = {"token": "x" * (100 if defect else 10_000)}
    (folder := tmp_path / str(defect)).mkdir()
    with pytest.MonkeyPatch.context() as patch, capture_logs() as lines:
        if defect:
            patch.setattr(CsrfTokens, "good", None)  # a call of it fails
        async with driving(folder, FakeOrchestrator(), principals=PRINCIPALS) as client:
            cookies = {client.server.application[SITE].cookie("browser"): "x"}
            began = asyncio.get_running_loop().time()
            for _ in range(60):
                url = f"{client.url}/login"
                async with client.session.post(url, data=form, cookies=cookies) as answer:
                    assert answer.status == (500 if defect else 413)
            most = 11 + 10 * (asyncio.get_running_loop().time() - began)
            headers = {"Authorization": f"Bearer {OPERATOR}"}
            url = f"{client.url}/api/v1/audit?principal=anonymous"
            async with client.session.get(url, headers=headers) as answer:
                found = (await answer.json())["items"]
    assert 10 <= len(found) <= most
    logged = [line["event"] for line in lines]
    assert 10 <= logged.count("request.done") <= most + 1
    assert logged.count("request.failed") <= most


@warm_module
async def test_pages_and_choices(place: Place) -> None:
    jobs = [await upload(place, ANN, "ann") for _ in range(3)]
    jobs.append(await upload(place, PORTAL, "ann", **{"Ferryman-Act-As": "ann"}))
    seen: list[dict[str, Any]] = []
    cursor = ""
    while len(seen) < 4:
        _, page = await ask(place, "GET", f"/api/v1/audit?limit=2&action=UPLOAD{cursor}")
        seen += page["items"]
        cursor = f"&cursor={page['next']}"
    assert said(seen, "target") == [(str(job),) for job in jobs[::-1]]
    assert said(await trail(place, f"?target={jobs[1]}&action=upload"), "principal") == [
        ("ann-laptop",)
    ]
    assert said(await trail(place, "?user=ann"), "principal", "target") == [
        ("portal", str(jobs[-1]))
    ]
    assert len(await trail(place, "?since=1h")) >= 4
    assert await trail(place, "?until=1h") == []
    for query in ("since=yesterday", "limit=0", "cursor=x", "tokn=1", f"user={'a' * 65}"):
        assert (await ask(place, "GET", f"/api/v1/audit?{query}"))[0] == 400
    for token in (ANN, PORTAL):
        status, refused = await ask(place, "GET", "/api/v1/audit", token)
        assert (status, refused["code"]) == (403, "not_allowed")


async def test_the_trail_outlives_the_server_and_has_the_callers_address_behind_a_proxy(
    tmp_path: Path,
) -> None:
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
ALL, LAST = AuditFilter(), 2**62


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
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS)
    yield Records(database)
    await database.close()


def written(records: Records, clock: SimClock | None = None, days: float = 1) -> AuditTrail:
    return AuditTrail(records, clock or SimClock(), days * DAY_S)


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


async def test_entries_are_kept_as_they_are_and_together(records: Records) -> None:
    trail = written(records)
    added = [entry(1), entry(2, role=None, code="not_allowed", left_out=3), entry(3, acts_as="x")]
    for one in added:
        trail.add(one)
    assert (await trail.write(), await trail.write()) == (3, 0)
    found = list(await records.page(ALL, 9, LAST))
    assert [replace(one, seq=0) for one in reversed(found)] == added
    assert [one.seq for one in found] == [3, 2, 1]
    assert records.sizes == [3]


async def test_whoever_waits_for_an_entry_waits_for_the_write_that_has_begun(
    records: Records,
) -> None:
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


async def test_what_cannot_be_kept_is_kept_later_bounded_without_the_oldest(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_MOST", 3)
    monkeypatch.setattr(audit, "_AT_ONCE", 2)
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
    assert [line["event"] for line in lines] == ["audit.not_written", "audit.written_late"]
    assert lines[-1]["dropped"] == 2
    assert await targets(trail) == ["4", "3", "2"]
    assert records.sizes == [2, 1]


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


async def test_a_page_has_what_was_asked_for(records: Records) -> None:
    trail = written(records)
    trail.add(entry(1))
    trail.add(entry(2, principal="bob"))
    trail.add(entry(3, acts_as="cleo", at=1_800_000_001 * SECOND))
    trail.add(entry(4, token_id="t", action="POST /api/v1/jobs/{id}/cancel"))
    for which, expected in (
        ({"principal": "bob"}, "2"),
        ({"acts_as": "cleo"}, "3"),
        ({"token_id": "t"}, "4"),
        ({"action": "CANCEL"}, "4"),
        ({"action": "%"}, ""),
        ({"action": "_"}, ""),
        ({"target": "3"}, "3"),
        ({"since": 1_800_000_001 * SECOND}, "3"),
        ({"until": 1_800_000_001 * SECOND}, "421"),
    ):
        asked: dict[str, Any] = which
        assert await targets(trail, AuditFilter(**asked)) == [*expected], which
    (last,) = await trail.page(ALL, 1, LAST)
    assert [one.target for one in await trail.page(ALL, 2, last.seq)] == ["3", "2"]
