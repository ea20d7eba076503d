"""``GET /metrics`` of the server; and what the log alone says of each job."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sqlite3
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read
from structlog.testing import capture_logs

from server import metrics
from server.store.statistics import SqlStatistics
from shared.principals import Principal, Role, Scope
from shared.sqlite.errors import DatabaseUnavailable
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.server_http import driving
from tests.kit.waiting import eventually
from tests.kit.warm import SLOTS, Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATOR = "an-operators-token"
PRINCIPALS = {
    OPERATOR: Principal("admin", Role.OPERATOR),
    "ann": Principal("ann", Role.USER, "7"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "node": Principal("node", Role.AGENT),
    "scraper": Principal("scraper", Role.OPERATOR, scopes=frozenset({Scope.READ})),
    "uploader": Principal("uploader", Role.OPERATOR, scopes=frozenset({Scope.SUBMIT})),
}


async def asked(place: Place, token: str = OPERATOR, **headers: str) -> tuple[int, str, str]:
    headers["Authorization"] = f"Bearer {token}"
    async with place.session.get(f"{place.url}/metrics", headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def samples(place: Place) -> dict[tuple[str, ...], float]:
    """Name and values of labels, in their order -> value; read from the store again."""
    place.warm.clock.forward(10)
    status, _, text = await asked(place)
    assert status == 200
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in read(text)
        for one in family.samples
    }


async def test_jobs_are_counted_by_service_and_state(place):
    before = await samples(place)
    for _ in range(3):
        await place.job(await place.upload())
    found = await samples(place)
    grew = {name: value - before.get(name, 0) for name, value in found.items()}
    assert found["ferryman_jobs_uploaded_total", place.service] == 3
    assert found["ferryman_jobs_ended_total", place.service, "Completed"] == 3
    assert found["ferryman_jobs_ended_total", place.service, "Failed"] == 0
    assert found["ferryman_jobs", place.service, "Queued"] == 0
    assert grew["ferryman_dispatches_total", "local", "accepted"] == 3
    assert grew["ferryman_transfers_total", "upload", "ok"] == 3
    assert grew["ferryman_transfers_total", "bundle", "ok"] == 3
    assert grew["ferryman_transfer_bytes_total", "result"] > 0
    assert grew["ferryman_http_requests_total", "POST", "/upload", "2xx"] == 3
    assert grew["ferryman_database_commit_seconds_count",] > 3
    assert found["ferryman_store_readable",] == 1
    assert found["process_open_fds",] > 0


async def test_who_may_read_services_and_agents_may_read_them(place):
    """An operator's token with the scope read is enough; none at all is not."""
    refused = {"": 401, "wrong": 401} | dict.fromkeys(("ann", "portal", "node", "uploader"), 403)
    for token, status in {**refused, "scraper": 200, OPERATOR: 200}.items():
        assert (await asked(place, token))[0] == status, token


async def test_neither_users_nor_made_up_names_become_labels(place):
    await place.job(await place.upload())
    before = await samples(place)
    for number in range(20):
        await place.get(f"/made-up-{number}")
        await place.get(f"/api/v1/jobs/{1_000 + number}")
        await place.get(f"/api/v1/jobs?madeup{number}=1")
        assert (await place.ask("PROPFIND", "/health"))[0] == 405
    found = await samples(place)
    assert found["ferryman_http_requests_total", "GET", "other", "4xx"] == 20
    assert found["ferryman_http_requests_total", "other", "other", "4xx"] == 20
    assert found["ferryman_http_requests_total", "GET", "/api/v1/jobs/{id}", "4xx"] == 20
    assert len(found) - len(before) < 40


async def test_a_service_that_is_not_known_is_counted_as_other(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        await caller.upload()
        path = tmp_path / "data" / "ferryman.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE jobs SET service = 'gone'")
        _, _, text = await caller.get("/metrics")
    assert b'ferryman_jobs{service="other",state="Queued"} 1.0' in text
    assert b'ferryman_oldest_waiting_seconds{service="other"}' in text
    assert b'"gone"' not in text


async def test_the_text_comes_as_it_was_asked_for(place):
    kind = (await asked(place, Accept="text/html, */*"))[1]
    assert kind.startswith("text/plain; version=0.0.4")
    asks = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    _, kind, text = await asked(place, Accept=asks)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert any(family.name == "ferryman_jobs" for family in read_open(text))
    for hostile in ("text/plain;version=x.y", "application/openmetrics-text;version=;;"):
        assert (await asked(place, Accept=hostile))[0] == 200
    for encoding in ("gzip", "gzip;q=0"):
        async with place.session.get(
            f"{place.url}/metrics", headers={"Accept-Encoding": encoding}, auto_decompress=False
        ) as answer:
            packed = answer.headers.get("Content-Encoding")
            sent = await answer.read()
        assert packed == ("gzip" if encoding == "gzip" else None)
        assert b"ferryman_jobs{" in (gzip.decompress(sent) if packed else sent)


async def test_those_of_the_store_are_left_out_while_it_cannot_be_read(place, monkeypatch):
    broken = DatabaseUnavailable(sqlite3.OperationalError("disk I/O error"))
    monkeypatch.setattr(SqlStatistics, "queued", AsyncMock(side_effect=broken))
    found = await samples(place)
    assert found["ferryman_store_readable",] == 0
    of_store = {"ferryman_jobs", "ferryman_oldest_waiting_seconds"}
    assert of_store.isdisjoint(name for name, *_ in found)
    assert ("ferryman_agent_up", "local") in found


async def test_a_crowd_that_asks_makes_the_store_count_once(place, monkeypatch):
    monkeypatch.setattr(metrics, "_FRESH_S", 60.0)
    counted = AsyncMock(return_value={})
    monkeypatch.setattr(SqlStatistics, "under_way", counted)
    place.warm.clock.forward(70)
    await asyncio.gather(*(asked(place) for _ in range(10)))
    assert counted.await_count == 1


SAID = ("event", "state", "attempt", "agent", "reason", "exit_code")


async def test_each_attempt_and_each_end_is_one_line_that_can_be_charged_and_explained(place):
    """The array's children never end."""
    await place.configure(retries=1, retry_delays=["0s"], retry_on=["exit_code"])
    codes = iter((3, 4, 0))

    def script(process: FakeProcess) -> None:
        if not process.launch.env.get("FERRYMAN_ARRAY_INDEX"):
            process.finish(next(codes))

    place.does(script)
    with capture_logs() as logs:
        failed = await place.upload()
        assert (await place.job(failed))["status"] == "Failed"
        done = await place.upload()
        result = (await place.job(done))["attempts"][0]["result_size"]
        waiting, array = await place.upload(not_before="in 1h"), await place.upload(array="0-9")
        listed = partial(place.api, "GET", "/jobs", parent=str(array))
        children = (await eventually(listed, lambda page: len(page["items"]) == 10))["items"]
        await place.job(children[-1]["id"], until="Running")
        for job_id in (waiting, array):
            await place.api("POST", f"/jobs/{job_id}/cancel")
            await place.job(job_id)

    def lines_of(job_id: int) -> list[Any]:
        ends = ("job.ended", "job.requeued")
        return [one for one in logs if one["event"] in ends and one["job_id"] == job_id]

    first, second = lines_of(failed)
    assert [first[name] for name in SAID] == ["job.requeued", "Queued", 1, "local", "exit_code", 3]
    assert [second[name] for name in SAID] == ["job.ended", "Failed", 2, "local", "exit_code", 4]
    assert second["message"] == "run.sh ended with exit code 4"
    assert (second["user_id"], second["service"]) == (place.user, place.service)
    for line in (first, second):
        assert 0 <= line["run_s"] < 60
        assert 0 <= line["wait_s"] < 60
    (end,) = lines_of(done)
    assert (end["state"], end["exit_code"], end["result_bytes"]) == ("Completed", 0, result)
    (end,) = lines_of(waiting)
    assert (end["state"], end["agent"], end["attempt"]) == ("Cancelled", None, 0)
    assert (end["run_s"], end["wait_s"], end["result_bytes"]) == (None, 0, None)
    ended = [line for one in children for line in lines_of(one["id"])] + lines_of(array)
    assert [one["state"] for one in ended] == ["Cancelled"] * 11
    assert len([one for one in ended if one["run_s"] is not None]) <= SLOTS
