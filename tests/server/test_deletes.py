"""Retry, cancel, delete and dead letters over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, NotFound
from tests.kit.command_line import ferryman
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving
from tests.kit.waiting import eventually

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
            status, page = await call(caller, "GET", f"jobs?dead_letter=true{query}")
            assert status == 200
            return [item["id"] for item in page["items"]]

        assert await listed() == jobs[::-1]
        assert await listed("&tag=a&reason=exit_code&service=my_service&user=7") == jobs[:1]
        assert await listed("&reason=timeout") == await listed("&since=2999-01-01T00:00:00Z") == []
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


async def test_a_delete_cancels_and_keeps_what_has_not_ended_and_deletes_what_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.stages.cancel.PATIENCE_S", 0.05)
    client = FakeOrchestrator(then="Running", kill_status=500)
    async with driving(tmp_path, client) as caller:
        waiting, needed = await caller.upload(not_before="in 1h"), await caller.upload()
        child = await caller.upload(after=str(needed))
        await caller.job(needed, until="Running")
        status, job = await call(caller, "DELETE", f"jobs/{needed}")
        assert (status, job["ended"]) == (202, False)
        assert "will be terminated" in job["message"]
        client.kill_status = 200
        # It is not deleted when it dies; and until then, a second request cancels it, too.
        status, job = await eventually(
            lambda: call(caller, "DELETE", f"jobs/{needed}"), lambda asked: asked[0] != 202
        )
        assert (status, job["status"]) == (200, "Cancelled")
        assert (await caller.job(child))["reason"] == "dependency_failed"
        status, job = await call(caller, "DELETE", f"jobs/{waiting}")
        assert (status, job["status"]) == (200, "Cancelled")
        assert job["message"] == "cancelled before it was started"
        for job_id in (needed, waiting):
            assert await call(caller, "DELETE", f"jobs/{job_id}") == (204, {})
            assert (await call(caller, "DELETE", f"jobs/{job_id}"))[0] == 404


async def test_sdk_and_command_line_say_whether_a_job_was_cancelled_or_deleted(
    tmp_path: Path,
) -> None:
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        job_id, other = await caller.upload(), await caller.upload(not_before="in 1h")
        await caller.job(job_id, until="Running")
        async with Client(caller.url) as client:
            kept = await client.delete(job_id)
            assert kept is not None
            assert (kept.status, (await client.status(job_id)).ended) == ("Cancelled", True)
            assert await client.delete(job_id) is None
            with pytest.raises(NotFound):
                await client.status(job_id)
        for said in ("had not ended: it is ", "is deleted"):
            code, _, err = await ferryman("delete", str(other), "--url", caller.url)
            assert (code, err.startswith(f"job {other} {said}")) == (0, True), err
            await call(caller, "GET", f"jobs/{other}?wait=5")
        await caller.job(await caller.upload(), until="Running")
        _, _, err = await ferryman("delete", "--all", "--yes", "--url", caller.url)
        assert err.strip().endswith("and kept")
