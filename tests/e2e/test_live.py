"""What a running job says and prints is seen while it runs, through both programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from tests.kit.dev_program import DevProgram

SCRIPT = b"""\
echo "first line"
echo "::progress value=45,total=100::step 45 of 100"
echo "::output name=score::0.93"
echo "::warning::nearly out of ideas"
echo "::event name=ideas.left,count=1::one"
sleep 3
echo "last line"
"""
FIRST = b"".join(SCRIPT.splitlines(keepends=True)[:5]).replace(b"echo ", b"").replace(b'"', b"")


async def messages(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    event = ""
    async for line in answer.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)


async def test_a_running_job_is_seen_in_its_document_its_events_and_its_log(
    system: DevProgram,
) -> None:
    async with aiohttp.ClientSession(system.url) as session:
        form = aiohttp.FormData({"user_id": "ada", "service": "example"})
        form.add_field("file", SCRIPT, filename="run.sh")
        async with session.post("/upload", data=form) as answer:
            here = f"/api/v1/jobs/{(await answer.json())['id']}"

        async def log() -> bytes:
            """Followed from before its start to its end."""
            got = b""
            while not got.endswith(b"last line\n"):
                query = {"follow": "1", "offset": str(len(got))}
                async with session.get(f"{here}/logs", params=query) as answer:
                    assert answer.status == 200, await answer.text()
                    async for chunk in answer.content.iter_any():
                        got += chunk
                        if got == FIRST:
                            seen.set()
            return got

        seen = asyncio.Event()
        reading = asyncio.create_task(log())
        events = {}
        accept = {"Accept": "text/event-stream"}
        async with session.get(f"{here}/events", headers=accept) as answer:
            async for name, event in messages(answer):
                events[name] = event
                if name == "job.progress":
                    async with session.get(here) as found:
                        job = await found.json()
                    await seen.wait()
                    assert (job["status"], job["message"]) == ("Running", "step 45 of 100")
                    assert job["progress"] == {"current": 45.0, "total": 100.0}
                    assert job["output"] == {"score": "0.93"}
                    async with session.get(f"{here}/logs?tail=5") as found:
                        assert await found.read() == FIRST[-5:]
                        assert found.headers["Ferryman-Log-Ended"] == "false"
        assert events["job.warning"]["message"] == "nearly out of ideas"
        own = events["ideas.left"]
        assert (own["source"], own["fields"]) == ("run.sh", {"count": "1"})
        assert events["job.output"]["fields"] == {"name": "score", "value": "0.93"}
        assert list(events)[-1] == "job.completed"
        assert await reading == FIRST + b"last line\n"
        async with session.get(here) as found:
            job = await found.json()
        assert (job["progress"], job["output"]) == (
            {"current": 100.0, "total": 100.0},
            {"score": "0.93"},
        )
        spent = {one["status"]: one["seconds"] for one in job["history"]}
        assert 2.5 < spent["Running"] < 60
        async with session.get(f"{here}/logs") as found:
            assert await found.read() == FIRST + b"last line\n"
