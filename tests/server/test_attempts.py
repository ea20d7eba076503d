"""What each attempt left, over HTTP, from an agent that may send anything."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientPayloadError

from shared.wire import AttemptDoc
from tests.kit.each import each
from tests.kit.fake_agent import RETRIED, FakeAgent, HeldPayload, left, serving
from tests.kit.server_http import ServerClient

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVICE = f"{RETRIED}runs_per_user = 99\nmax_runs = 99\n"


@dataclass
class Pair:
    """A server, and an agent of the test's making."""

    caller: ServerClient
    agent: FakeAgent

    async def running(self) -> tuple[int, HeldPayload]:
        job_id = await self.caller.upload()
        await self.caller.job(job_id, until="Running")
        return job_id, self.agent.held(f"{job_id}.1")

    async def ended(self, result: bytes, status: str = "Completed", **more: Any) -> int:
        """A job whose attempt left this."""
        job_id, held = await self.running()
        held.status, held.result, held.more = status, result, more
        await self.agent.say(held)
        await self.caller.job(job_id)
        return job_id

    async def ask(self, path: str) -> tuple[int, str]:
        status, _, body = await self.caller.get(path)
        return status, json.loads(body)["code"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(module_folder: Path) -> AsyncIterator[Pair]:
    agent = FakeAgent(ends="Running", slots=99)
    async with serving(module_folder, agent, extra=SERVICE) as caller:
        yield Pair(caller, agent)


async def test_what_each_attempt_left_is_kept_and_can_be_read(pair: Pair) -> None:
    caller, agent = pair.caller, pair.agent
    job_id, first = await pair.running()
    here = f"/api/v1/jobs/{job_id}"
    assert await pair.ask(f"{here}/result?attempt=1") == (409, "not_ended")
    first.status, first.result = "Failed", left("line\n" * 200_000, "no luck\n")
    first.more = {"exit_code": 3, "reason": "exit_code", "stderr_tail": "no luck"}
    await agent.say(first)
    await agent.until(lambda: agent.starts[f"{job_id}.2"] == 1)
    await caller.job(job_id, until="Running")
    second = agent.held(f"{job_id}.2")
    second.status, second.result, second.more = "Completed", left("fine\n", ""), {"exit_code": 0}
    await agent.say(second)
    job = await caller.job(job_id)
    assert (job["status"], job["exit_code"], job["attempt"]) == ("Completed", 0, 2)

    one, two = (AttemptDoc.model_validate(item) for item in job["attempts"])
    assert (one.number, one.status, one.exit_code, one.reason) == (1, "Failed", 3, "exit_code")
    assert (one.agent, one.result_size) == ("fake", len(first.result))
    assert one.ended_at is not None
    assert (two.number, two.status, two.exit_code) == (2, "Completed", 0)
    for link, kind, content in (
        (one.links.result, "application/zip", first.result),
        (two.links.result, "application/zip", second.result),
        (one.links.stdout, "text/plain", b"line\n" * 200_000),
        (one.links.stderr, "text/plain", b"no luck\n"),
        (two.links.stdout, "text/plain", b"fine\n"),
    ):
        assert await caller.get(link or "") == (200, kind, content)
    for path, code in {
        f"{here}/result?attempt=3": "attempt_not_found",
        f"{here}/logs?attempt=3": "attempt_not_found",
        "/api/v1/jobs/99999/result?attempt=1": "job_not_found",
    }.items():
        assert await pair.ask(path) == (404, code)


def packed(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_", "."), text)
    return out.getvalue()


def damaged(flaw: str) -> bytes:
    """A result whose directory is well, and whose log is not."""
    long = 99_999 if flaw == "late" else 9_999
    made = bytearray(left("".join(map(str, range(long))), ""))
    directory = made.index(b"PK\x01\x02")
    if flaw == "late":
        made[directory - 10_000 : directory - 9_000] = bytes(1_000)
    elif flaw == "bytes":
        made[60:200] = bytes(140)
    elif flaw == "shorter":
        made[directory + 24 : directory + 28] = (10**6).to_bytes(4, "little")
    else:
        receipt = made.rindex(b"PK\x01\x02")
        at, value = {"encrypted": (8, 1), "method": (10, 99)}[flaw]
        made[receipt + at] = value
    return bytes(made)


@each(
    "result, code",
    [
        (b"no zip at all", "no_log"),
        (packed(output_txt=b"x"), "no_log"),
        (packed(ferryman_json=b"[]"), "no_log"),
        (packed(ferryman_json=b"{"), "no_log"),
        (damaged("encrypted"), "no_log"),
        (damaged("method"), "no_log"),
        (damaged("shorter"), "no_log"),
        (damaged("bytes"), "unreadable_result"),
    ],
)
async def test_a_result_without_a_log_that_can_be_read_says_so(
    pair: Pair, result: bytes, code: str
) -> None:
    job_id = await pair.ended(result)
    assert await pair.ask(f"/api/v1/jobs/{job_id}/logs?attempt=1") == (409, code)


async def test_a_log_that_is_damaged_behind_its_beginning_ends_its_connection(pair: Pair) -> None:
    """Whoever reads must not wait for the rest, or take another answer for it."""
    job_id = await pair.ended(damaged("late"))
    with pytest.raises(ClientPayloadError):
        await pair.caller.get(f"/api/v1/jobs/{job_id}/logs?attempt=1")


async def test_an_attempt_that_left_nothing_says_why(pair: Pair) -> None:
    job_id = await pair.ended(b"", "Invalid", message="run.sh is no script")
    (attempt,) = (await pair.caller.job(job_id))["attempts"]
    assert attempt["links"] == {"result": None, "stdout": None, "stderr": None}
    status, _, body = await pair.caller.get(f"/api/v1/jobs/{job_id}/result?attempt=1")
    problem = json.loads(body)
    assert (status, problem["code"]) == (409, "no_result")
    assert "run.sh is no script" in problem["detail"]
