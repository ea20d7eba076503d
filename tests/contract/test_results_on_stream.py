"""What a server asks an agent for when a small job has ended: its stream, and nothing more."""

from typing import Any

import pytest
from aiohttp import web

from client_agent.api.routes import Api
from server.agents.events import MAX_RESULT, QUICK_MS
from tests.kit.warm import together


def noted(monkeypatch: pytest.MonkeyPatch, api: type[Api], *names: str) -> list[web.Request]:
    """Requests that the agent gets for these handlers."""
    seen: list[web.Request] = []
    for name in names:
        handler = getattr(api, name)

        async def note(one: Any, request: web.Request, handler=handler) -> Any:
            seen.append(request)
            return await handler(one, request)

        monkeypatch.setattr(api, name, note)
    return seen


async def test_a_small_result_comes_on_the_stream_and_is_not_asked_for(
    tmp_path, monkeypatch
) -> None:
    streams = noted(monkeypatch, Api, "events")
    fetched = noted(monkeypatch, Api, "retrieve", "retrieve_partial")
    async with together(tmp_path) as system:
        job_id = await system.upload()
        process = await system.process(job_id)
        process.write("out.txt", b"new")
        process.finish()
        assert (await system.job(job_id))["status"] == "Completed"
        assert b"out.txt" in (await system.get(f"/api/v1/jobs/{job_id}/result"))[2]
    assert [request.path for request in fetched] == []
    asked = [(each.query.get("results"), each.query.get("quick_ms")) for each in streams]
    assert set(asked) == {(str(MAX_RESULT), str(QUICK_MS))}
