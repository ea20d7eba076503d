"""``GET /metrics`` of the server."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sqlite3

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read

from server import metrics
from server.store.statistics import SqlStatistics
from shared.principals import Principal, Role, Scope
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import JobState
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

PRINCIPALS = {
    "ann": Principal("ann", Role.USER, "7"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "node": Principal("node", Role.AGENT),
    "admin": Principal("admin", Role.OPERATOR),
    "scraper": Principal("scraper", Role.OPERATOR, scopes=frozenset({Scope.READ})),
    "uploader": Principal("uploader", Role.OPERATOR, scopes=frozenset({Scope.SUBMIT})),
}


async def asked(client: ServerClient, token: str = "", **headers: str) -> tuple[int, str, str]:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    async with client.session.get(f"{client.url}/metrics", headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def samples(client: ServerClient) -> dict[tuple[str, ...], float]:
    """Name and values of labels, in their order -> value."""
    status, _, text = await asked(client)
    assert status == 200
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in read(text)
        for one in family.samples
    }


async def test_jobs_are_counted_by_service_and_state(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        for _ in range(3):
            await client.job(await client.upload())
        found = await samples(client)
        assert found["ferryman_jobs_uploaded_total", "my_service"] == 3
        assert found["ferryman_jobs_ended_total", "my_service", "Completed"] == 3
        assert found["ferryman_jobs_ended_total", "my_service", "Failed"] == 0
        assert found["ferryman_jobs", "my_service", "Queued"] == 0
        assert found["ferryman_transfers_total", "upload", "ok"] == 3
        assert found["ferryman_transfers_total", "bundle", "ok"] == 3
        assert found["ferryman_transfer_bytes_total", "result"] > 0
        assert found["ferryman_dispatches_total", "my_service", "accepted"] == 3
        assert found["ferryman_http_requests_total", "POST", "/upload", "2xx"] == 3
        assert found["ferryman_database_commit_seconds_count",] > 3
        assert found["ferryman_store_readable",] == 1
        assert found["process_open_fds",] > 0


async def test_who_may_read_services_and_agents_may_read_them(tmp_path):
    """An operator's token with the scope read is enough; none at all is not."""
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as client:
        for token, status in {
            "": 401,
            "wrong": 401,
            "ann": 403,
            "portal": 403,
            "node": 403,
            "uploader": 403,
            "scraper": 200,
            "admin": 200,
        }.items():
            assert (await asked(client, token))[0] == status, token


async def test_neither_users_nor_made_up_names_become_labels(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), auth="none") as client:
        await client.job(await client.upload())
        before = await samples(client)
        for number in range(20):
            await client.get(f"/made-up-{number}")
            await client.get(f"/api/v1/jobs/{1_000 + number}")
            await client.get(f"/api/v1/jobs?madeup{number}=1")
            url = f"{client.url}/health"
            async with client.session.request("PROPFIND", url) as answer:
                assert answer.status == 405
        found = await samples(client)
        assert found["ferryman_http_requests_total", "GET", "other", "4xx"] == 20
        assert found["ferryman_http_requests_total", "other", "other", "4xx"] == 20
        assert found["ferryman_http_requests_total", "GET", "/api/v1/jobs/{id}", "4xx"] == 20
        assert len(found) - len(before) < 40


async def test_a_service_that_is_not_known_is_counted_as_other(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as client:
        job = await client.upload()
        with contextlib.closing(sqlite3.connect(tmp_path / "data/ferryman.sqlite")) as database:
            database.execute("UPDATE jobs SET service = 'gone' WHERE id = ?", (job,))
            database.commit()
        found = await samples(client)
        assert found["ferryman_jobs", "other", "Queued"] == 1
        assert found["ferryman_oldest_waiting_seconds", "other"] >= 0
        assert ("ferryman_jobs", "gone", "Queued") not in found


async def test_the_text_comes_as_it_was_asked_for(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        kind = (await asked(client, Accept="text/html, */*"))[1]
        assert kind.startswith("text/plain; version=0.0.4")
        asks = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        _, kind, text = await asked(client, Accept=asks)
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert any(family.name == "ferryman_jobs" for family in read_open(text))
        for hostile in ("text/plain;version=x.y", "application/openmetrics-text;version=;;"):
            assert (await asked(client, Accept=hostile))[0] == 200
        headers = {"Accept-Encoding": "gzip"}
        async with client.session.get(
            f"{client.url}/metrics", headers=headers, auto_decompress=False
        ) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert b"ferryman_jobs{" in gzip.decompress(await answer.read())
        headers = {"Accept-Encoding": "gzip;q=0"}
        async with client.session.get(f"{client.url}/metrics", headers=headers) as answer:
            assert "Content-Encoding" not in answer.headers


async def test_those_of_the_store_are_left_out_while_it_cannot_be_read(tmp_path, monkeypatch):
    async with driving(tmp_path, FakeOrchestrator()) as client:

        async def broken(*_: object) -> None:
            raise DatabaseUnavailable(sqlite3.OperationalError("disk I/O error"))

        monkeypatch.setattr(SqlStatistics, "queued", broken)
        found = await samples(client)
        assert found["ferryman_store_readable",] == 0
        assert not [
            name
            for name in found
            if name[0] in ("ferryman_jobs", "ferryman_oldest_waiting_seconds")
        ]
        assert ("ferryman_agent_up", "my_service") in found


async def test_a_crowd_that_asks_makes_the_store_count_once(tmp_path, monkeypatch):
    counted = []
    under_way = SqlStatistics.under_way

    async def counting(self: SqlStatistics) -> dict[tuple[str, JobState], int]:
        counted.append(self)
        return await under_way(self)

    async with driving(tmp_path, FakeOrchestrator()) as client:
        monkeypatch.setattr(SqlStatistics, "under_way", counting)
        monkeypatch.setattr(metrics, "_FRESH_S", 60.0)
        await asyncio.gather(*(asked(client) for _ in range(10)))
    assert len(counted) == 1
