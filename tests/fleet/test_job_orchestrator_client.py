"""Our server drives a job-orchestrator client: plain parts, polling, and no keys."""

import io
import zipfile
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

ONCE = "[services.my_service]\ninfra_retries = 0\n"


@pytest.fixture
def client() -> FakeOrchestrator:
    return FakeOrchestrator()


async def running(caller: ServerClient) -> int:
    job_id = await caller.upload()
    await caller.job(job_id, until="Running")
    return job_id


async def unpacked(caller: ServerClient, path: str) -> zipfile.ZipFile:
    status, kind, body = await caller.get(path)
    assert (status, kind) == (200, "application/zip"), body
    return zipfile.ZipFile(io.BytesIO(body))


@pytest.mark.parametrize("size", [0, 2 << 20], ids=["small", "large"])
async def test_a_job_goes_there_and_its_result_comes_back(tmp_path, client, size):
    files = {"run.sh": RUN, "data/in.pdb": b"ATOM", "b/in.pdb": b"B"}
    client.result = bytes(size)
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload(files)
        assert (await caller.job(job_id))["status"] == "Completed"
        history = await caller.states(job_id)
        assert (history[:3], history[-1]) == (["Queued", "Processing", "Submitted"], "Completed")
        result = await unpacked(caller, f"/download/{job_id}")
        assert result.read("output.txt") == b"of payload 1"
        assert {*result.namelist()} - {*files} == {"output.txt", *(["result"] if size else [])}
    (held,) = client.payloads.values()
    assert held.files == files
    assert held.file_names["data/in.pdb"] == "in.pdb"


@pytest.mark.parametrize("then", ["Completed", "Failed"])
async def test_it_knows_no_limits_so_a_large_result_is_no_fault_of_its_own(
    tmp_path, client, monkeypatch, then
):
    monkeypatch.setattr("server.domain.outcome.ZIP_OVERHEAD", 0)
    client.then, client.result = then, bytes(2 << 20)
    little = '[services.my_service]\nlimits = { results = "1MiB", log = "64KiB" }\n'
    async with driving(tmp_path, client, extra=little) as caller:
        job = await caller.job(await caller.upload())
        reason = None if then == "Completed" else "exit_code"
        assert (job["status"], job["reason"], job["attempt"]) == (then, reason, 1)
        result = await unpacked(caller, f"/download_partial/{job['id']}")
        assert len(result.read("result")) == 2 << 20


async def test_a_large_result_that_it_has_no_more_is_not_waited_for(tmp_path, client, monkeypatch):
    """It is polled for it no more, so what fetches the result has to notice."""
    client.result, retrieve = bytes(2 << 20), client.retrieve

    async def once(request: web.Request) -> web.StreamResponse:
        answer = await retrieve(request)
        if answer.content_type == "application/zip":
            client.payloads.clear()
        return answer

    client.retrieve = once
    async with driving(tmp_path, client, extra=ONCE) as caller:
        job = await caller.job(await caller.upload())
        assert (job["status"], job["reason"]) == ("Failed", "agent_lost")


async def test_children_of_a_batch_are_not_sent_there(tmp_path, client):
    async with driving(tmp_path, client) as caller:
        parent = await caller.upload({"run.sh": RUN}, array="0-1")
        assert (await caller.job(parent))["reason"] == "child_failed"
        child = await caller.job(parent + 1)
        assert (child["status"], child["reason"]) == ("Failed", "not_offered")
        assert "is a job-orchestrator client" in child["message"]
        assert (await caller.job(await caller.upload({"run.sh": RUN})))["status"] == "Completed"
    assert len(client.payloads) == 1


async def test_what_it_says_of_a_payload_becomes_of_the_job(tmp_path, client):
    """Failures with a reason and what was left; words that say nothing change nothing; and a client
    that forgot the payload is not asked for ever.
    """
    async with driving(tmp_path, client, extra=ONCE) as caller:
        for then, status, reason in (
            ("Failed", "Failed", "exit_code"),
            ("Invalid", "Failed", "invalid_bundle"),
            ("Killed", "Cancelled", None),
        ):
            client.then = then
            job = await caller.job(await caller.upload())
            assert (job["status"], job["reason"]) == (status, reason)
            assert job["message"]
            assert await unpacked(caller, f"/download_partial/{job['id']}")
        for client.then in ("Locked", "Unknown"):
            job_id = await caller.upload()
            await caller.job(job_id, until="Submitted")
            client.payloads[max(client.payloads)].status = "Completed"
            assert (await caller.job(job_id))["status"] == "Completed"
        client.then = "Running"
        job_id = await running(caller)
        client.payloads.clear()
        job = await caller.job(job_id)
        assert (job["status"], job["reason"]) == ("Failed", "agent_lost")


async def test_a_cancel_kills_there_and_is_spelled_killed_here(tmp_path, client):
    client.then = "Running"
    async with driving(tmp_path, client) as caller:
        job_id = await running(caller)
        result = await unpacked(caller, f"/download_partial/{job_id}")
        assert "output.txt" in result.namelist()
        assert "/retrieve_partial/1" in client.asked, "while it runs"
        killed = {"id": job_id, "status": "Killed", "message": "job terminated"}
        assert await caller.terminate(job_id) == (200, killed)
        assert client.killed == [1]
        assert (await caller.job(job_id))["status"] == "Cancelled"
        followed = caller.server.context.stages.get.progress._followed
        assert not followed, "it reports nothing by itself"
        assert (await caller.get(f"/download/{job_id}"))[1] == "application/json"
        client.kill_says = True  # that has no key: what polls the client sees what becomes of it
        job_id = await running(caller)
        with capture_logs() as logged:
            assert (await caller.terminate(job_id))[1]["status"] == "Killed"
            await running(caller)
        assert "payload.failed" not in [one["event"] for one in logged]


@pytest.mark.parametrize("page", ["", "<html>"], ids=["errors", "pages"])
async def test_errors_or_pages_for_ever_free_the_slot_in_the_end(tmp_path, client, page):
    """Each attempt has its own time until it is given up."""
    client.then, client.page, client.broken = "Running", page, not page
    clock, twice = SimClock(), "[services.my_service]\ninfra_retries = 1\n"
    away: dict[str, Any] = {"agent_lost_after": 120.0, "getter_interval": 5.0, "machine": clock}
    with clock.autojump():
        async with driving(tmp_path, client, extra=twice, **away) as caller:
            job = await caller.job(await caller.upload())
            assert (job["status"], job["reason"], job["attempt"]) == ("Failed", "agent_lost", 2)
            assert not page or "an answer that is not a job-orchestrator client's" in job["message"]
            assert (await caller.states(job["id"])).count("Unknown") == 2
            assert clock.monotonic() >= 2 * 120.0


@pytest.mark.parametrize("cut", [10, 1 << 20], ids=["cut off", "empty"])
async def test_what_is_no_whole_zip_is_no_result(tmp_path, client, cut):
    client.cut = cut
    async with driving(tmp_path, client, extra=ONCE, agent_timeout=0.1) as caller:
        job_id = await caller.upload()
        assert "not a whole ZIP" in (await caller.job(job_id, until="Unknown"))["message"]
        client.cut = 0
        assert (await caller.job(job_id))["status"] == "Completed"
        assert (await unpacked(caller, f"/download/{job_id}")).testzip() is None


def took_s(attempt: dict[str, Any]) -> float:
    start, end = (datetime.fromisoformat(attempt[name]) for name in ("started_at", "ended_at"))
    return (end - start).total_seconds()


async def test_the_wall_time_there_is_retried_as_the_service_says(tmp_path, client, monkeypatch):
    monkeypatch.setattr("server.stages.poll.TIMEOUT_GRACE_S", 0.0)
    client.then = "Running"
    again = '[services.my_service]\ntimeout = "0.1s"\nretries = 1\nretry_delays = ["0s"]\n'
    async with driving(tmp_path, client, extra=again) as caller:
        job = await caller.job(await caller.upload())
        assert (job["status"], job["reason"], job["attempt"]) == ("Failed", "timeout", 2)
        # Each has its time from its own start on.
        assert all(took_s(attempt) >= 0.1 for attempt in job["attempts"])
        result = await unpacked(caller, f"/download_partial/{job['id']}")
        assert result.read("output.txt") == b"of payload 2"
    assert client.killed == [1, 2]


async def test_a_404_alone_does_not_say_that_a_job_is_dead(tmp_path, client, monkeypatch):
    monkeypatch.setattr("server.stages.cancel.PATIENCE_S", 0.1)
    client.then, client.kill_status = "Running", 404
    async with driving(tmp_path, client) as caller:
        job_id = await running(caller)
        assert (await caller.terminate(job_id))[0] == 202
        assert "/retrieve/1" in client.asked, "the payload's own address knows better"
        client.payloads.clear()
        status, found = await caller.terminate(job_id)
        assert (status, found["status"]) == (200, "Killed")


async def test_an_ambiguous_send_is_never_run_twice_where_it_cannot_be_asked(tmp_path, client):
    client.silent = True
    async with driving(tmp_path, client) as caller:
        job = await caller.job(await caller.upload())
        assert (job["status"], job["reason"]) == ("Failed", "agent_unreachable")
        assert "cannot be asked" in job["message"]
    assert len(client.payloads) == 1
