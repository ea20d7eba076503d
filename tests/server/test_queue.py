"""What users see of the queue and of a database without space."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.domain.jobs import Move
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.waiting import eventually
from tests.kit.warm import Place

warm_module = pytest.mark.asyncio(loop_scope="module")


@warm_module
async def test_positions_in_a_queue_that_refuses_when_it_is_full(place: Place) -> None:
    await place.configure(runs_per_user=1, queued_per_user=3)
    place.does(None)
    await place.job(await place.upload(), until="Running")
    rest = [await place.upload() for _ in range(3)]
    shown = [await place.api("GET", f"/jobs/{job_id}") for job_id in rest]
    assert [one["queue"]["position"] for one in shown] == [1, 2, 3]
    with pytest.raises(AssertionError, match="queue_full"):
        await place.upload()
    await place.api("POST", f"/jobs/{rest[1]}/cancel")
    await place.upload()


@warm_module
@each("goes, status, code", [("cleaned", 410, "result_cleaned"), ("deleted", 404, "job_not_found")])
async def test_a_result_that_goes_while_it_is_asked_for_is_no_fault_of_the_server(
    place: Place, goes: str, status: int, code: str
) -> None:
    job_id = await place.upload()
    await place.job(job_id)
    jobs = place.server.context.jobs

    async def gone(*_: object) -> None:
        job = await jobs.get(job_id)
        if goes == "deleted":
            await jobs.delete(job_id)
        else:
            await jobs.clean([Move(job_id, job.attempt, job.state, JobState.CLEANED, 1, "")])
        raise FileNotFoundError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.http.results.send_file", gone)
        found, problem = await place.ask("GET", f"/api/v1/jobs/{job_id}/result")
    assert (found, problem["code"]) == (status, code)


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

        async def fill() -> None:
            for _ in range(200):
                await caller.upload()

        with pytest.raises(AssertionError, match="database_unavailable"):
            await fill()
        status, _, body = await caller.get("/health")
        reply = json.loads(body)
        assert (status, reply["database"]) == (503, "error")
        assert "no space left for the database" in reply["message"]
        assert (await caller.get(f"/api/v1/jobs/{kept}"))[0] == 200
        await database._writer.rows("PRAGMA max_page_count = 1000000")
        # Nobody uploads to a server that says that it is full: it has to find out itself.
        await eventually(lambda: caller.get("/health"), lambda it: it[0] == 200)
        await caller.upload()
