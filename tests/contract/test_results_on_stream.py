"""What a server asks an agent for when a small job has ended: its stream, and nothing more."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from client_agent.api.bulk import Bulk
from client_agent.api.routes import Api
from server.agents.event_lines import MAX_RESULT, QUICK_MS
from tests.contract.test_outputs import BUNDLE, OWN, started


def noted(monkeypatch: pytest.MonkeyPatch, api: type[Api | Bulk], *names: str) -> list[web.Request]:
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
    together = noted(monkeypatch, Bulk, "results")
    async with started(tmp_path, BUNDLE) as job:
        job.process.write("out.txt", b"new")
        document, files = await job.end()
    assert document["status"] == "Completed"
    assert set(files) == {*BUNDLE, "out.txt", *OWN}
    assert [request.path for request in (*fetched, *together)] == []
    asked = [(each.query.get("results"), each.query.get("quick_ms")) for each in streams]
    assert set(asked) == {(str(MAX_RESULT), str(QUICK_MS))}
