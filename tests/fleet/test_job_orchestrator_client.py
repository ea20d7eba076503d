"""Our server drives a job-orchestrator client: plain parts, polling, and no keys."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.settings import load
from shared.settings.base import SettingsError
from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving


@pytest.fixture
def client() -> FakeOrchestrator:
    return FakeOrchestrator()


async def test_a_job_goes_there_and_its_result_comes_back(tmp_path, client):
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload({"run.sh": RUN, "data/in.pdb": b"ATOM", "b/in.pdb": b"B"})
        job = await caller.job(job_id)
        assert job["status"] == "Completed"
        history = await caller.states(job_id)
        assert history[:3] == ["Queued", "Processing", "Submitted"]
        assert history[-1] == "Completed"
        status, kind, body = await caller.get(f"/download/{job_id}")
        assert (status, kind) == (200, "application/zip")
        assert zipfile.ZipFile(io.BytesIO(body)).read("output.txt") == b"of payload 1"
    (held,) = client.payloads.values()
    assert held.files == {"run.sh": RUN, "data/in.pdb": b"ATOM", "b/in.pdb": b"B"}
    assert held.file_names["data/in.pdb"] == "in.pdb"


async def test_children_of_a_batch_are_not_sent_there(tmp_path, client):
    async with driving(tmp_path, client) as caller:
        parent = await caller.upload({"run.sh": RUN}, array="0-1")
        assert (await caller.job(parent))["reason"] == "child_failed"
        child = await caller.job(parent + 1)
        assert (child["status"], child["reason"]) == ("Failed", "not_offered")
        assert "is a job-orchestrator client" in child["message"]
        assert (await caller.job(await caller.upload({"run.sh": RUN})))["status"] == "Completed"
    assert len(client.payloads) == 1


@pytest.mark.parametrize(
    ("then", "status", "reason"),
    [
        ("Failed", "Failed", "exit_code"),
        ("Invalid", "Failed", "invalid_bundle"),
        ("Killed", "Cancelled", None),
    ],
)
async def test_other_ends_are_reported_with_a_reason_and_what_was_left(
    tmp_path, client, then, status, reason
):
    client.then = then
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        job = await caller.job(job_id)
        assert (job["status"], job["reason"]) == (status, reason)
        assert job["message"]
        found, kind, _ = await caller.get(f"/download_partial/{job_id}")
        assert (found, kind) == (200, "application/zip")


@pytest.mark.parametrize("word", ["Locked", "Unknown"])
async def test_words_that_say_nothing_change_nothing(tmp_path, client, word):
    client.then = word
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Submitted")
        client.payloads[1].status = "Completed"
        assert (await caller.job(job_id))["status"] == "Completed"


async def test_what_a_cancel_is_answered_with_is_not_followed(tmp_path):
    """It has no key, and what polls the client sees what becomes of it."""
    client = FakeOrchestrator(then="Running", kill_says=True)
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        with capture_logs() as logged:
            async with caller.session.post(f"{caller.url}/api/v1/jobs/{job_id}/cancel") as answer:
                assert (answer.status, (await answer.json())["status"]) == (200, "Cancelled")
            await caller.job(await caller.upload(), until="Running")
        assert "payload.failed" not in [one["event"] for one in logged]


async def test_a_cancel_kills_there_and_is_spelled_killed_here(tmp_path, client):
    client.then = "Running"
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        async with caller.session.post(f"{caller.url}/terminate/{job_id}") as answer:
            assert answer.status == 200
            body = await answer.json()
            assert body == {"id": job_id, "status": "Killed", "message": "job terminated"}
        assert client.killed == [1]
        assert (await caller.job(job_id))["status"] == "Cancelled"
        _, kind, _ = await caller.get(f"/download/{job_id}")
        assert kind == "application/json"


async def test_a_partial_result_is_fetched_live(tmp_path, client):
    client.then = "Running"
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        status, kind, body = await caller.get(f"/download_partial/{job_id}")
        assert (status, kind) == (200, "application/zip")
        assert "output.txt" in zipfile.ZipFile(io.BytesIO(body)).namelist()
    assert "/retrieve_partial/1" in client.asked


async def test_a_client_that_forgot_the_payload_is_not_asked_for_ever(tmp_path, client):
    client.then = "Running"
    once = "[services.my_service]\ninfra_retries = 0\n"
    async with driving(tmp_path, client, extra=once) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        client.payloads.clear()
        job = await caller.job(job_id)
        assert (job["status"], job["reason"]) == ("Failed", "agent_lost")


@asynccontextmanager
async def patient(folder: Path, client: FakeOrchestrator) -> AsyncIterator[ServerClient]:
    """A server on time that passes by itself: a minute away is Unknown, two are lost."""
    clock, once = SimClock(), "[services.my_service]\ninfra_retries = 0\n"
    away: dict[str, Any] = {"agent_lost_after": 120.0, "getter_interval": 5.0}
    with clock.autojump():
        async with driving(folder, client, extra=once, machine=clock, **away) as caller:
            yield caller


async def test_errors_for_ever_free_the_slot_in_the_end(tmp_path, client):
    client.then, client.broken = "Running", True
    async with patient(tmp_path, client) as caller:
        job_id = await caller.upload()
        job = await caller.job(job_id)
        assert (job["status"], job["reason"]) == ("Failed", "agent_lost")
        assert "Unknown" in await caller.states(job_id)


async def test_a_page_in_place_of_a_payload_is_no_answer(tmp_path, client):
    client.then, client.page = "Running", "<html>"
    async with patient(tmp_path, client) as caller:
        job = await caller.job(await caller.upload())
        assert (job["status"], job["reason"]) == ("Failed", "agent_lost")
        assert "an answer that is not a job-orchestrator client's" in job["message"]
        assert "Unknown" in await caller.states(job["id"])


@pytest.mark.parametrize("cut", [10, 1 << 20], ids=["cut off", "empty"])
async def test_what_is_no_whole_zip_is_no_result(tmp_path, client, cut):
    client.cut = cut
    once = "[services.my_service]\ninfra_retries = 0\n"
    async with driving(tmp_path, client, extra=once, agent_timeout=0.1) as caller:
        job_id = await caller.upload()
        job = await caller.job(job_id, until="Unknown")
        assert "not a whole ZIP" in job["message"]
        client.cut = 0
        assert (await caller.job(job_id))["status"] == "Completed"
        _, _, body = await caller.get(f"/download/{job_id}")
        assert zipfile.ZipFile(io.BytesIO(body)).testzip() is None


async def test_each_attempt_has_its_own_time_until_it_is_given_up(tmp_path, client):
    client.then, client.broken = "Running", True
    twice = "[services.my_service]\ninfra_retries = 1\n"
    short: dict[str, Any] = {"agent_timeout": 0.05, "agent_lost_after": 1.0}
    async with driving(tmp_path, client, extra=twice, **short) as caller:
        job = await caller.job(await caller.upload())
        assert (job["status"], job["attempt"]) == ("Failed", 2)
        assert (await caller.states(job["id"])).count("Unknown") == 2


def times(attempt: dict[str, Any]) -> tuple[float, float]:
    start, end = (attempt[name] for name in ("started_at", "ended_at"))
    return datetime.fromisoformat(start).timestamp(), datetime.fromisoformat(end).timestamp()


async def test_the_wall_time_there_is_retried_as_the_service_says(tmp_path, client, monkeypatch):
    monkeypatch.setattr("server.stages.poll.TIMEOUT_GRACE_S", 0.0)
    client.then = "Running"
    again = '[services.my_service]\ntimeout = "0.1s"\nretries = 1\nretry_delays = ["0s"]\n'
    async with driving(tmp_path, client, extra=again) as caller:
        job = await caller.job(await caller.upload())
        assert (job["status"], job["reason"], job["attempt"]) == ("Failed", "timeout", 2)
        # Each has its time from its own start on.
        starts, ends = zip(*(times(one) for one in job["attempts"]), strict=True)
        assert all(end - start >= 0.1 for start, end in zip(starts, ends, strict=True))
        _, kind, body = await caller.get(f"/download_partial/{job['id']}")
        assert kind == "application/zip"
        assert zipfile.ZipFile(io.BytesIO(body)).read("output.txt") == b"of payload 2"
    assert client.killed == [1, 2]


async def test_a_404_alone_does_not_say_that_a_job_is_dead(tmp_path, client, monkeypatch):
    monkeypatch.setattr("server.stages.cancel.PATIENCE_S", 0.1)
    client.then, client.kill_status = "Running", 404
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        async with caller.session.post(f"{caller.url}/terminate/{job_id}") as answer:
            assert answer.status == 202
        assert "/retrieve/1" in client.asked, "the payload's own address knows better"
        client.payloads.clear()
        async with caller.session.post(f"{caller.url}/terminate/{job_id}") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "Killed")


async def test_what_is_prepared_there_counts_against_the_quota(tmp_path, client):
    client.then = "Prepared"
    async with driving(tmp_path, client) as caller:
        ids = [await caller.upload() for _ in range(3)]
        for job_id in ids[:2]:
            await caller.job(job_id, until="Submitted")
        waiting = await caller.job(ids[2], until="Queued")
        assert "most the service allows one user" in waiting["queue"]["reason"]
        client.payloads[1].status = "Completed"
        await caller.job(ids[2], until="Submitted")
    assert len(client.payloads) == 3


async def test_an_ambiguous_send_is_never_run_twice_where_it_cannot_be_asked(tmp_path, client):
    client.silent = True
    async with driving(tmp_path, client) as caller:
        job = await caller.job(await caller.upload())
        assert (job["status"], job["reason"]) == ("Failed", "agent_unreachable")
        assert "cannot be asked" in job["message"]
    assert len(client.payloads) == 1


def test_service_names_hold_underscores_and_bad_numbers_are_named():
    environ = {
        "SERVICE_A_B_C_UPLOAD_URL": "http://127.0.0.1:1/submit",
        "SERVICE_A_B_C_DOWNLOAD_URL": "http://127.0.0.1:1/retrieve",
        "SERVICE_A_B_C_TERMINATE_URL": "http://127.0.0.1:1/kill",
    }
    assert list(load.read(None, {}, environ).services) == ["a_b_c"]
    with pytest.raises(SettingsError, match="SERVICE_A_B_C_MAX_RUNS: 'ten' is not"):
        load.read(None, {}, environ | {"SERVICE_A_B_C_MAX_RUNS": "ten"})
    incomplete = {"SERVICE_X_UPLOAD_URL": "http://127.0.0.1:1/submit"}
    with pytest.raises(SettingsError, match=r"agents\.x"):
        load.read(None, {}, incomplete)


async def test_an_agent_that_is_not_there_is_reported_in_words_for_people(tmp_path, client):
    async with driving(tmp_path, client, gone=True) as caller:
        job = await caller.job(await caller.upload(), until="Queued")
        assert "cannot be reached" in job["queue"]["reason"]
        assert "Connect" in job["queue"]["reason"]
        assert "ssl" not in job["queue"]["reason"]
