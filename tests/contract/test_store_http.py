"""What users see of the store: pages of a list, places in the queue, a database that is full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.domain.jobs import Move
from server.settings import load
from shared.files.durable import FolderInUse
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving
from tests.kit.waiting import eventually

KEPT = '[services.my_service]\nqueued_per_user = 3\nexpires_after = "1d"\n'


async def page(caller: ServerClient, query: str) -> tuple[list[int], str | None]:
    status, _, body = await caller.get(f"/api/v1/jobs?{query}")
    assert status == 200, body
    found = json.loads(body)
    return [job["id"] for job in found["items"]], found["next"]


async def uploads(caller: ServerClient, count: int) -> None:
    for _ in range(count):
        await caller.upload()


async def test_the_pages_of_a_list_follow_each_other_to_the_last(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(then="Running"), gone=True) as caller:
        await uploads(caller, 5)
        assert await page(caller, "limit=2") == ([5, 4], "4")
        assert await page(caller, "limit=2&cursor=4") == ([3, 2], "2")
        assert await page(caller, "limit=2&cursor=2") == ([1], None)
        assert await page(caller, "limit=5&user=7&state=Queued") == ([5, 4, 3, 2, 1], None)
        assert await page(caller, "limit=2&cursor=3&user=7") == ([2, 1], None)


async def test_a_position_in_the_queue_is_shown(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        first, second, *rest = [await caller.upload() for _ in range(5)]
        for job_id in (first, second):
            await caller.job(job_id, until="Running")  # two at once for one user
        places = [
            (await caller.job(job_id, until="Queued"))["queue"]["position"] for job_id in rest
        ]
        assert places == [1, 2, 3]


async def test_a_full_queue_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), gone=True, extra=KEPT) as caller:
        await uploads(caller, 3)
        with pytest.raises(AssertionError, match="queue_full"):
            await caller.upload()
        async with caller.session.post(f"{caller.url}/api/v1/jobs/2/cancel") as answer:
            assert answer.status == 200
        assert await caller.upload() == 4


async def test_a_full_database_is_reported_as_507_and_health_recovers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Database] = []
    real = Database.open

    async def keep(*args: object) -> Database:
        opened.append(await real(*args))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(Database, "open", keep)
    async with driving(tmp_path, FakeOrchestrator(), gone=True, cleaner_interval=0.02) as caller:
        (database,) = opened
        kept = await caller.upload()
        (used,) = (await database.rows("PRAGMA page_count"))[0]
        await database._writer.rows(f"PRAGMA max_page_count = {used}")
        with pytest.raises(AssertionError, match="database_unavailable"):
            await uploads(caller, 200)
        status, _, body = await caller.get("/health")
        reply = json.loads(body)
        assert (status, reply["database"]) == (503, "error")
        assert "no space left for the database" in reply["message"]
        assert (await caller.get(f"/api/v1/jobs/{kept}"))[0] == 200
        await database._writer.rows("PRAGMA max_page_count = 1000000")
        # Nobody uploads to a server that says that it is full: it has to find out itself.
        await eventually(lambda: caller.get("/health"), lambda it: it[0] == 200)
        await caller.upload()


@pytest.mark.parametrize(
    ("goes", "status", "code"),
    [("cleaned", 410, "result_cleaned"), ("deleted", 404, "job_not_found")],
)
async def test_a_result_that_goes_while_it_is_asked_for_is_no_fault_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes: str, status: int, code: str
) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        job_id = await caller.upload()
        await caller.job(job_id)
        jobs = caller.server.context.jobs

        async def gone(*_: object) -> None:
            job = await jobs.get(job_id)
            if goes == "deleted":
                await jobs.delete(job_id)
            else:
                await jobs.clean([Move(job_id, job.attempt, job.state, JobState.CLEANED, 1, "")])
            raise FileNotFoundError

        monkeypatch.setattr("server.http.results.send_file", gone)
        found, _, body = await caller.get(f"/api/v1/jobs/{job_id}/result")
        assert (found, json.loads(body)["code"]) == (status, code)


async def test_two_servers_cannot_share_a_database_that_lies_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    shared = tmp_path / "shared.sqlite"
    async with driving(tmp_path / "a", FakeOrchestrator(), gone=True, db_path=shared):
        with pytest.raises(FolderInUse, match=r"shared\.sqlite is in use by another process"):
            async with driving(tmp_path / "b", FakeOrchestrator(), gone=True, db_path=shared):
                pass


def test_job_orchestrators_maximal_age_is_the_expiry_of_every_service() -> None:
    environ = {"MAX_AGE": "60", "SERVICE_A_MAX_RUNS": "3", "SERVICE_B_RUNS_PER_USER": "2"}
    found = load.read(None, {}, environ)
    assert {name: one.expires_after for name, one in found.services.items()} == {"a": 60, "b": 60}
    assert load.read(None, {}, {"MAX_AGE": "60"}).services["example"].expires_after == 60
    assert (
        load.read(None, {}, {"MAX_AGE": "60"}).services["example"].service("x").expires_after_s
        == 60
    )
