"""The agents, as operators see them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiohttp import web

from server.api.context import CONTEXT
from server.ports import Agent


async def listing(request: web.Request) -> web.StreamResponse:
    """The agents, and what each does now."""
    context = request.app[CONTEXT]
    jobs, running = Counter[str](), Counter[str]()
    for one in await context.jobs.held():
        jobs[one.agent] += one.slots
        running[one.agent] += one.running
    items = [
        {
            "name": agent.name,
            "up": agent.accepts_work,
            "reachable": agent.reachable,
            "kind": "ferryman" if agent.supports_events else "job-orchestrator",
            "jobs": jobs[agent.name],
            "running": running[agent.name],
            "slots": agent.slots,
            "trouble": agent.trouble,
            "health": _health(agent),
        }
        for agent in context.fleet.all()
    ]
    return web.json_response({"items": items})


def _health(agent: Agent) -> dict[str, Any] | None:
    """Its latest health document, without the number of running jobs, which is out of date."""
    if agent.health is None:
        return None
    return agent.health.model_dump(exclude_none=True, exclude={"running"})
