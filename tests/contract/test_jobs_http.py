"""Jobs and results over HTTP: job-orchestrator's shapes, and ours with plain HTTP meanings."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import zipfile

from ferryman import Client
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

KEYS = {
    *("id", "status", "message", "user_id", "service", "name", "tags", "priority", "attempt"),
    *("retries_left", "ended", "reason", "exit_code", "progress", "output", "agent", "parent_id"),
    *("children", "queue", "created_at", "submitted_at", "started_at", "ended_at"),
    *("heartbeat_at", "not_before", "expires_at", "usage", "links"),
}


async def test_the_reference_routes_keep_their_shapes(tmp_path):
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:
        assert json.loads((await caller.get("/"))[2]) == {"message": "pong"}
        health = json.loads((await caller.get("/health"))[2])
        assert (health["status"], health["database"]) == ("ok", "ok")
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        status, kind, body = await caller.get(f"/download/{job_id}")
        assert (status, kind) == (200, "application/json")
        reply = json.loads(body)
        assert (set(reply), reply["status"]) == ({"id", "status", "message"}, "Running")
        for path in ("/download/99", "/download_partial/99", "/download/x", f"/download/{9**40}"):
            status, kind, body = await caller.get(path)
            reply = json.loads(body)
            assert (status, kind, reply["id"], reply["status"]) == (
                404,
                "application/json",
                0,
                "Unknown",
            )
        assert json.loads((await caller.get("/download/99"))[2])["message"] == (
            "Job 99 not found in the database"
        )


async def test_the_job_document_has_every_key_of_the_design(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        job = await caller.job(await caller.upload())
        assert set(job) >= KEYS
        assert (job["ended"], job["user_id"], job["service"]) == (True, "7", "my_service")


async def test_errors_below_api_are_problems(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for path, status, code in [
            ("/api/v1/jobs/99", 404, "job_not_found"),
            ("/api/v1/nothing", 404, "not_found"),
            ("/api/v1/jobs?state=Sleeping", 400, "invalid_state"),
            ("/api/v1/jobs?limit=0", 400, "invalid_limit"),
            ("/api/v1/jobs?color=red", 400, "unknown_parameter"),
        ]:
            found, kind, body = await caller.get(path)
            reply = json.loads(body)
            assert (found, kind, reply["code"]) == (status, "application/problem+json", code)
            assert reply["detail"]
            assert reply["request_id"]
        async with caller.session.put(f"{caller.url}/api/v1/jobs") as answer:
            assert answer.status == 405


async def test_a_wait_ends_with_the_change_it_waits_for(tmp_path):
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        waiting = asyncio.ensure_future(caller.get(f"/download/{job_id}?wait=100"))
        client.payloads[1].status = "Completed"
        status, kind, _ = await asyncio.wait_for(waiting, 30)
        assert (status, kind) == (200, "application/zip")


async def test_a_result_has_validators_ranges_and_its_digest(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        job_id = await caller.upload()
        await caller.job(job_id)
        url = f"{caller.url}/api/v1/jobs/{job_id}/result"

        async def get(method: str = "GET", **headers: str):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with caller.session.request(method, url, headers=named) as answer:
                return answer.status, answer.headers, await answer.read()

        status, headers, whole = await get()
        digest = base64.b64encode(hashlib.sha256(whole).digest()).decode()
        assert status == 200
        assert headers["Repr-Digest"] == f"sha-256=:{digest}:"
        assert "filename*=UTF-8''job-1.zip" in headers["Content-Disposition"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        tag = headers["ETag"]
        assert (await get(If_None_Match=tag))[0] == 304
        status, headers, some = await get(Range="bytes=5-9")
        assert (status, some) == (206, whole[5:10])
        assert headers["Content-Range"] == f"bytes 5-9/{len(whole)}"
        assert (await get(Range="bytes=-4"))[2] == whole[-4:]
        assert (await get(Range="bytes=5-", If_Range=tag))[0] == 206
        status, _, body = await get(Range="bytes=5-", If_Range='"another"')
        assert (status, body) == (200, whole)
        assert (await get(Range=f"bytes={len(whole)}-"))[0] == 416
        status, headers, body = await get("HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", str(len(whole)))


async def test_where_there_is_no_result_the_status_says_why(tmp_path):
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:
        first = await caller.upload()
        await caller.job(first, until="Running")  # so that payload 1 is its own
        second = await caller.upload()
        await caller.job(second, until="Running")
        status, _, _ = await caller.get(f"/api/v1/jobs/{first}/result")
        assert status == 202
        client.payloads[1].status = "Failed"
        await caller.job(first)
        status, kind, body = await caller.get(f"/api/v1/jobs/{first}/result")
        assert (status, kind) == (409, "application/problem+json")
        assert f"/download_partial/{first}" in json.loads(body)["detail"]
        async with caller.session.post(f"{caller.url}/api/v1/jobs/{second}/cancel") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "Cancelled")
        async with caller.session.post(f"{caller.url}/api/v1/jobs/{first}/cancel") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "Failed")
        async with caller.session.post(f"{caller.url}/terminate/{first}") as answer:
            assert (answer.status, (await answer.json())["status"]) == (409, "Failed")


async def test_what_has_expired_is_gone(tmp_path):
    soon = '[services.my_service]\nexpires_after = "1ms"\n'
    async with driving(tmp_path, FakeOrchestrator(), extra=soon, cleaner_interval=0.02) as caller:
        job_id = await caller.upload()
        seen: list[str] = []
        while "Cleaned" not in seen:
            seen = await caller.states(job_id, more_than=len(seen))
        assert (await caller.get(f"/api/v1/jobs/{job_id}/result"))[0] == 410
        assert (await caller.get(f"/download_partial/{job_id}"))[0] == 410
        status, kind, body = await caller.get(f"/download/{job_id}")
        assert (status, kind, json.loads(body)["status"]) == (200, "application/json", "Cleaned")


async def test_lists_are_chosen_by_what_the_upload_said(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        plain = await caller.upload()
        named = await caller.upload(
            name="nightly", tags="a,b", priority="7", meta='{"sample": [1, null]}'
        )
        later = await caller.upload(not_before="in 2h", tags="a", after=str(plain))
        shown = await caller.job(named, until="Running")
        assert (shown["priority"], shown["meta"]) == (7, {"sample": [1, None]})
        document = json.loads((await caller.get(f"/api/v1/jobs/{later}"))[2])
        assert (document["status"], document["not_before"][-1]) == ("Queued", "Z")
        for query, expected in [
            ("name=nightly", [named]),
            ("tag=a", [later, named]),
            ("tag=a&state=Queued", [later]),
            ("since=1h", [later, named, plain]),
            ("until=1h", []),
            ("since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z", []),
            ("reason=timeout", []),
            ("dead_letter=true", []),
            ("top_level=true&tag=a", [later, named]),
            ("parent=1", []),
            ("batch=true&tag=a", []),
            ("schedule=1", []),
            (f"after={plain}", [later]),
            (f"after={plain}&tag=a", [later]),
            (f"after={plain}&tag=b", []),
            (f"after={named}&tag=a", []),
        ]:
            page = json.loads((await caller.get(f"/api/v1/jobs?{query}"))[2])
            assert [job["id"] for job in page["items"]] == expected, query


async def test_a_choice_that_means_nothing_is_named_with_its_value(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for query, code, words in [
            ("reason=bored", "invalid_reason", "exit_code"),
            ("since=soon", "invalid_since", "'soon' is not a time such as"),
            ("since=2020-01-01T00:00:00", "invalid_since", "offset from UTC"),
            ("parent=x", "invalid_parent", "'x' is not a number"),
            ("dead_letter=false", "invalid_dead_letter", "leave it out"),
            ("top_level=false", "invalid_top_level", "leave it out"),
            (f"name={'n' * 201}", "invalid_name", "200"),
        ]:
            status, _, body = await caller.get(f"/api/v1/jobs?{query}")
            problem = json.loads(body)
            assert (status, problem["code"]) == (400, code)
            assert words in problem["detail"]


async def test_the_bundle_can_be_fetched_from_the_upload_until_it_is_cleaned(tmp_path):
    client = FakeOrchestrator(then="Running")
    files = {"run.sh": b"echo hello\n", "a/b.txt": bytes(range(256)) * 400}
    expires = '[services.my_service]\nexpires_after = "10ms"\n'
    async with driving(tmp_path, client, extra=expires, cleaner_interval=0.02) as caller:
        job_id = await caller.upload(files)
        document = json.loads((await caller.get(f"/api/v1/jobs/{job_id}"))[2])
        path = document["links"]["bundle"]
        assert path == f"/api/v1/jobs/{job_id}/bundle"
        async with caller.session.get(f"{caller.url}{path}") as answer:
            whole, etag = await answer.read(), answer.headers["ETag"]
            assert (answer.status, answer.content_type) == (200, "application/zip")
            assert f"job-{job_id}-bundle.zip" in answer.headers["Content-Disposition"]
        with zipfile.ZipFile(io.BytesIO(whole)) as packed:
            assert {name: packed.read(name) for name in files} == files
        headers = {"Range": "bytes=5-9", "If-Range": etag}
        async with caller.session.get(f"{caller.url}{path}", headers=headers) as answer:
            assert (answer.status, await answer.read()) == (206, whole[5:10])
        headers = {"If-None-Match": etag}
        async with caller.session.get(f"{caller.url}{path}", headers=headers) as answer:
            assert answer.status == 304
        async with Client(caller.url) as sdk:
            done = await sdk.download(job_id, f"{tmp_path}/", bundle=True)
        assert (done.path.name, done.size) == (f"job-{job_id}-bundle.zip", len(whole))
        await caller.job(job_id, until="Running")
        await caller.session.post(f"{caller.url}/api/v1/jobs/{job_id}/cancel")
        states = await caller.states(job_id)
        while states[-1] != "Cleaned":
            states = await caller.states(job_id, more_than=len(states))
        status, _, body = await caller.get(path)
        assert (status, json.loads(body)["code"]) == (410, "result_cleaned")
        document = json.loads((await caller.get(f"/api/v1/jobs/{job_id}"))[2])
        assert document["links"]["bundle"] is None
