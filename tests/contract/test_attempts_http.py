"""Attempts over HTTP: what the first one left can be read when a second one has followed."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from shared.wire import AttemptDoc
from tests.kit.fake_agent import FakeAgent, serving

RETRIED = """
retries = 1
retry_delays = ["0s"]
retry_on = ["exit:3"]
"""


def left(stdout: str, stderr: str) -> bytes:
    """A result with logs, of which one has another name than usual."""
    packed = io.BytesIO()
    logs = {"stdout": "stdout.log", "stderr": "stderr.ferryman.log"}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(logs["stdout"], stdout)
        archive.writestr(logs["stderr"], stderr)
        archive.writestr("stderr.log", "the job's own file")
        archive.writestr("ferryman.json", json.dumps({"logs": logs}))
    return packed.getvalue()


async def test_what_each_attempt_left_is_kept_and_can_be_read(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, extra=RETRIED) as caller:
        job_id = await caller.upload()
        here = f"/api/v1/jobs/{job_id}"
        await caller.job(job_id, until="Running")
        status, _, body = await caller.get(f"{here}/result?attempt=1")
        assert (status, json.loads(body)["code"]) == (409, "not_ended")
        first = agent.held(f"{job_id}.1")
        first.status, first.result = "Failed", left("line\n" * 200_000, "no luck\n")
        first.more = {"exit_code": 3, "reason": "exit_code", "stderr_tail": "no luck"}
        await agent.say(first)
        await agent.until(lambda: agent.starts[f"{job_id}.2"] == 1)
        await caller.job(job_id, until="Running")
        second = agent.held(f"{job_id}.2")
        second.status, second.result = "Completed", left("fine\n", "")
        second.more = {"exit_code": 0}
        await agent.say(second)
        job = await caller.job(job_id)
        assert (job["status"], job["exit_code"], job["attempt"]) == ("Completed", 0, 2)

        one, two = (AttemptDoc.model_validate(item) for item in job["attempts"])
        assert (one.number, one.status, one.exit_code, one.reason) == (1, "Failed", 3, "exit_code")
        assert (one.agent, one.result_size) == ("fake", len(first.result))
        assert one.ended_at is not None
        assert (two.number, two.status, two.exit_code) == (2, "Completed", 0)
        assert await caller.get(one.links.result or "") == (200, "application/zip", first.result)
        assert await caller.get(two.links.result or "") == (200, "application/zip", second.result)
        _, kind, body = await caller.get(one.links.stdout or "")
        assert (kind, body) == ("text/plain", b"line\n" * 200_000)
        assert (await caller.get(one.links.stderr or ""))[2] == b"no luck\n"
        assert (await caller.get(two.links.stdout or ""))[2] == b"fine\n"

        for path, code in {
            f"{here}/result?attempt=3": "attempt_not_found",
            f"{here}/logs?attempt=3": "attempt_not_found",
            "/api/v1/jobs/99/result?attempt=1": "job_not_found",
        }.items():
            status, _, body = await caller.get(path)
            assert (status, json.loads(body)["code"]) == (404, code), path


@pytest.mark.parametrize(
    "content",
    [b"no zip at all", {"output.txt": b"x"}, {"ferryman.json": b"[]"}, {"ferryman.json": b"{"}],
)
async def test_a_result_without_a_log_says_so(tmp_path, content: Any) -> None:
    packed = io.BytesIO()
    if isinstance(content, dict):
        with zipfile.ZipFile(packed, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        held = agent.held(f"{job_id}.1")
        held.status, held.result = "Completed", packed.getvalue() or content
        await agent.say(held)
        await caller.job(job_id)
        status, _, body = await caller.get(f"/api/v1/jobs/{job_id}/logs?attempt=1")
        assert (status, json.loads(body)["code"]) == (409, "no_log")


def damaged(flaw: str) -> bytes:
    """A result whose directory is well, and whose log is not."""
    long = 99_999 if flaw == "late" else 9_999
    packed = bytearray(left("".join(map(str, range(long))), ""))
    directory = packed.index(b"PK\x01\x02")
    if flaw == "late":
        packed[directory - 10_000 : directory - 9_000] = bytes(1_000)
    elif flaw == "bytes":
        packed[60:200] = bytes(140)
    elif flaw == "shorter":
        packed[directory + 24 : directory + 28] = (10**6).to_bytes(4, "little")
    else:
        receipt = packed.rindex(b"PK\x01\x02")
        at, value = {"encrypted": (8, 1), "method": (10, 99)}[flaw]
        packed[receipt + at] = value
    return bytes(packed)


@pytest.mark.parametrize(
    ("flaw", "code"),
    [
        ("encrypted", "no_log"),
        ("method", "no_log"),
        ("bytes", "unreadable_result"),
        ("shorter", "no_log"),
        ("late", ""),
    ],
)
async def test_a_log_that_cannot_be_unpacked_is_refused_or_ends_its_connection(
    tmp_path, flaw: str, code: str
) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        held = agent.held(f"{job_id}.1")
        held.status, held.result = "Completed", damaged(flaw)
        await agent.say(held)
        await caller.job(job_id)
        path = f"/api/v1/jobs/{job_id}/logs?attempt=1"
        if code:
            status, _, body = await caller.get(path)
            assert (status, json.loads(body)["code"]) == (409, code)
        else:
            # Whoever reads must not wait for the rest, or take another answer for it.
            with pytest.raises(ClientPayloadError):
                await caller.get(path)


async def test_an_attempt_that_left_nothing_says_why(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        held = agent.held(f"{job_id}.1")
        held.status, held.more = "Invalid", {"message": "run.sh is no script"}
        await agent.say(held)
        await caller.job(job_id)
        (attempt,) = (await caller.job(job_id))["attempts"]
        assert attempt["links"] == {"result": None, "stdout": None, "stderr": None}
        status, _, body = await caller.get(f"/api/v1/jobs/{job_id}/result?attempt=1")
        assert (status, json.loads(body)["code"]) == (409, "no_result")
        assert "run.sh is no script" in json.loads(body)["detail"]
