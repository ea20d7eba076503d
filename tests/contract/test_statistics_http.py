"""``GET /api/v1/statistics``: what happened when, for operators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferryman import Client, NotFound
from server.domain.statistics import MINUTE
from shared.clock import SECOND, RealClock
from shared.principals import Principal, Role
from shared.steady_clock import PersistentClock
from tests.support.command_line import ferryman
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.past_week import write_past_week
from tests.support.server_http import ServerClient, driving

PRINCIPALS = {
    "ann": Principal("ann", Role.USER, "7"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "agent": Principal("agent", Role.AGENT),
    "admin": Principal("admin", Role.OPERATOR),
}


async def asked(client: ServerClient, query: str = "", token: str = "") -> tuple[int, Any]:
    given = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{client.url}/api/v1/statistics{query}"
    async with client.session.get(url, headers=given) as answer:
        return answer.status, json.loads(await answer.read())


async def test_jobs_are_counted_by_service_and_reason(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        for _ in range(3):
            await client.job(await client.upload())
        statistics = client.server.context.statistics
        await statistics.run_once()
        for query in ("?period=day", "?period=week&service=my_service", "?period=day&service="):
            status, found = await asked(client, query)
            assert status == 200
            total = found["total"]
            assert (total["uploaded"], total["completed"]) == (3, 3)
            assert total["uploaded_bytes"] > 0
            assert total["result_bytes"] > 0
            # A job-orchestrator client does not say when it started what has ended already.
            assert total["run"] == {"count": 0, "mean_s": None, "p50_s": None, "p95_s": None}
            assert "my_service" in found["services"]
            assert sum(point["uploaded"] for point in found["points"]) == 3
            point = found["points"][-1]
            assert point["queued"] is not None
            alone = found["service"] is not None
            assert (point["disk_free_bytes"] is None) is alone
            assert (point["agents_up"] is None) is alone


async def test_what_was_counted_ever_stays_when_the_jobs_are_deleted(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        job_id = await client.upload()
        await client.job(job_id)
        async with client.session.delete(f"{client.url}/api/v1/jobs/{job_id}") as answer:
            assert answer.status == 204
        await client.server.context.statistics.run_once()
        for query in ("", "?service=my_service"):
            ever = (await asked(client, query))[1]["ever"]
            assert (ever["uploaded"], ever["completed"], ever["cancelled"]) == (1, 1, 0)


async def test_a_minute_is_shown_when_it_is_over(tmp_path, monkeypatch):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        clock = client.server.context.clock
        assert isinstance(clock, PersistentClock)
        begin = MINUTE.start(clock.now()) + 3_600 * SECOND
        statistics = client.server.context.statistics
        seen = []
        for second in (5, 59, 61):
            monkeypatch.setattr(PersistentClock, "now", lambda _, at=second: begin + at * SECOND)
            await statistics.run_once()
            assert statistics.until_next_s() == (60 - second % 60)
            seen.append(len((await asked(client))[1]["points"]))
        assert seen == [0, 0, 1]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?period=year", 400, "invalid_period"),
        ("?period=" + "x" * 1_000, 400, "invalid_period"),
        ("?service=nosuch", 404, "service_not_found"),
        ("?service=%00%F0%9F%98%80", 404, "service_not_found"),
        ("?since=1h", 400, "unknown_parameter"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused(tmp_path, query, status, code):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        found = await asked(client, query)
        assert (found[0], found[1]["code"]) == (status, code)


async def test_they_are_for_operators(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as client:
        answers = [(await asked(client, token=token))[0] for token in ("ann", "portal", "agent")]
        assert answers == [403, 403, 403]
        assert (await asked(client))[0] == 401
        assert (await asked(client, token="admin"))[0] == 200


async def test_the_sdk_reads_them(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        await client.job(await client.upload())
        await client.server.context.statistics.run_once()
        async with Client(client.url, user="7") as own:
            found = await own.statistics("week", "my_service")
            assert (found.resolution_s, found.total.completed) == (3_600, 1)
            with pytest.raises(NotFound):
                await own.statistics(service="nosuch")


async def test_the_command_line_shows_them(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    await write_past_week(data / "ferryman.sqlite", RealClock().now())
    async with driving(tmp_path, FakeOrchestrator()) as client:
        at = ("--url", client.url)
        code, shown, _ = await ferryman("statistics", "--period", "week", *at)
        assert code == 0
        lines = {line.split()[0]: line for line in shown.splitlines()}
        total = (await asked(client, "?period=week"))[1]["total"]
        assert lines["completed"].split()[1] == str(total["completed"])
        assert lines["timeout"].split()[1] == str(total["failed"]["timeout"])
        assert "█" in lines["queued"]
        code, found, _ = await ferryman("statistics", "-s", "docking", "-p", "day", "--json", *at)
        assert (code, json.loads(found)["service"]) == (0, "docking")
        assert (await ferryman("statistics", "--period", "year", *at))[0] == 2
