"""Retry, cancel, delete and dead letters over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import ServerClient, driving
from tests.support.waiting import eventually

DEAD = "[services.my_service]\ndead_letter = true\n"


async def call(caller: ServerClient, method: str, path: str) -> tuple[int, dict[str, Any]]:
    async with caller.session.request(method, f"{caller.url}/api/v1/{path}") as answer:
        body = await answer.read()
        return answer.status, json.loads(body) if body else {}


async def test_a_dead_letter_is_listed_retried_and_dropped(tmp_path: Path) -> None:
    client = FakeOrchestrator(then="Failed")
    async with driving(tmp_path, client, extra=DEAD) as caller:
        jobs = [await caller.upload(tags="a,b"), await caller.upload()]
        for job_id in jobs:
            assert (await caller.job(job_id))["dead_letter"] is True

        async def listed(query: str = "") -> list[int]:
            status, page = await call(caller, "GET", f"dead-letters{query}")
            assert status == 200
            return [item["id"] for item in page["items"]]

        assert await listed() == jobs[::-1]
        assert await listed("?tag=a&reason=exit_code&service=my_service&user=7") == jobs[:1]
        assert await listed("?reason=timeout") == await listed("?since=2999-01-01T00:00:00Z") == []
        assert (await call(caller, "GET", "dead-letters?state=Failed"))[0] == 400
        client.then = "Completed"
        status, job = await call(caller, "POST", f"jobs/{jobs[0]}/retry")
        assert (status, job["run"], job["dead_letter"], job["ended"]) == (200, 2, False, False)
        done = await caller.job(jobs[0])
        assert (done["status"], done["attempt"]) == ("Completed", 2)
        assert [one["status"] for one in done["attempts"]] == ["Failed", "Completed"]
        assert await call(caller, "DELETE", f"jobs/{jobs[1]}") == (204, {})
        assert await listed() == []


async def test_what_cannot_be_retried_says_why(tmp_path: Path) -> None:
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        status, problem = await call(caller, "POST", f"jobs/{job_id}/retry")
        assert (status, problem["code"]) == (409, "not_retryable")
        assert "it has not ended: it is" in problem["detail"]
        assert (await call(caller, "POST", "jobs/99/retry"))[0] == 404


async def test_a_job_that_cannot_die_now_is_deleted_later(tmp_path: Path) -> None:
    client = FakeOrchestrator(then="Running", kill_status=500)
    async with driving(tmp_path, client, cancel_patience=0.05) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        status, job = await call(caller, "DELETE", f"jobs/{job_id}")
        assert (status, job["ended"]) == (202, False)
        assert job["cancel_requested_at"] is not None
        client.kill_status = 200
        await eventually(
            lambda: call(caller, "GET", f"jobs/{job_id}?wait=5"), lambda it: it[0] == 404
        )
        assert (await call(caller, "DELETE", f"jobs/{job_id}"))[0] == 404
