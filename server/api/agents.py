"""The agents, as operators see them and decide about them."""

from __future__ import annotations

from typing import Final, Literal

from aiohttp import web

from server.domain.access import Area
from server.http.agent_documents import decide, document, listed
from server.http.context import Context
from server.http.params import MAX_MESSAGE, JsonBody, flag, flag_param, read_body
from server.http.route import AGENT, Body, Route
from shared import wire
from shared.http.request_log import TARGET
from shared.wire import AgentDoc, AgentPage


async def listing(request: web.Request, context: Context) -> AgentPage:
    """The agents, and what each does now."""
    return AgentPage(items=await listed(context, every=flag_param(request, "retired")))


async def read(request: web.Request, context: Context) -> AgentDoc:
    """One agent, by its name or id."""
    return await document(context, await context.agents.find(request.match_info["name"]))


class ChangeBody(JsonBody):
    """What ``POST /api/v1/agents/{name}`` takes."""

    action: Literal["drain", "resume", "retire", "lost"]
    """drain: no new jobs. resume: it is used again. retire: no jobs, no contact. lost: it will not
    come back, and its attempts end."""
    message: str = ""
    """Why, on one line; shown with the agent."""


async def change(request: web.Request, context: Context) -> AgentDoc:
    """Drain an agent, use it again, retire it, or give it up."""
    body, name = await read_body(request, ChangeBody), request.match_info["name"]
    request[TARGET] = f"{body.action} {name}"
    return await document(context, await decide(context, name, body.action, body.message))


_RETIRED_TOO: Final = {
    "retired": flag("1: also those that were retired and are not in the settings")
}
_CHANGE: Final = Body(
    "application/json",
    {
        "type": "object",
        "properties": {
            "action": {"enum": ["drain", "resume", "retire", "lost"]},
            "message": {"type": "string", "maxLength": MAX_MESSAGE},
        },
        "required": ["action"],
        "additionalProperties": False,
    },
    {"action": "drain", "message": "a new disk"},
    ChangeBody,
)

ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/agents",
        Area.AGENTS,
        listing,
        {200: wire.AgentPage},
        query=_RETIRED_TOO,
    ),
    Route("GET", AGENT, Area.AGENTS, read, {200: wire.AgentDoc}),
    Route(
        "POST",
        AGENT,
        Area.AGENTS,
        change,
        {200: wire.AgentDoc},
        body=_CHANGE,
    ),
)
