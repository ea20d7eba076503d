"""The agents, as operators see them and decide about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.agent_documents import document, listed
from server.http.context import Context
from server.http.parameter_types import flag, word
from server.http.params import MAX_MESSAGE, flag_param, message_param
from server.http.paths import AGENT
from server.http.route import Route
from server.stages.agents import DRAINED, LOST, RETIRED
from shared import wire
from shared.units.sizes import say_count
from shared.wire import AgentDoc, AgentPage


async def listing(request: web.Request, context: Context) -> AgentPage:
    """The agents, and what each does now."""
    return AgentPage(items=await listed(context, every=flag_param(request, "all")))


async def read(request: web.Request, context: Context) -> AgentDoc:
    """One agent, by its name or id."""
    return await document(context, await context.agents.find(request.match_info["name"]))


async def drain(request: web.Request, context: Context) -> AgentDoc:
    """Give the agent no new jobs; those that it has are followed to their end."""
    message = message_param(request, DRAINED)
    return await document(context, await context.agents.drain(request.match_info["name"], message))


async def resume(request: web.Request, context: Context) -> AgentDoc:
    """Use the agent again, after it was drained, retired or declared lost."""
    return await document(context, await context.agents.resume(request.match_info["name"]))


async def retire(request: web.Request, context: Context) -> AgentDoc:
    """Use the agent no more: it gets no jobs and is not contacted."""
    message = message_param(request, RETIRED)
    return await document(context, await context.agents.retire(request.match_info["name"], message))


async def lost(request: web.Request, context: Context) -> AgentDoc:
    """End all attempts of an agent that cannot be reached, because it will not come back."""
    message = message_param(request, LOST)
    record, ended = await context.agents.declare_lost(request.match_info["name"], message)
    attempts = f"{say_count(ended, 'attempt')} ended" if ended else "it had no jobs"
    return await document(context, replace(record, message=f"{record.message}; {attempts}"))


_AGENT_MESSAGE: Final = {"message": word("why; shown with the agent, one line", MAX_MESSAGE)}
_ALL_AGENTS: Final = {"all": flag("1: also those that were retired and are not in the settings")}
_REFUSALS: Final = (
    "agent_not_found",
    "agent_retired",
    "agent_removed",
    "agent_replaced",
    "agent_has_jobs",
    "agent_reachable",
)

ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/agents",
        Area.AGENTS,
        listing,
        {200: wire.AgentPage},
        query=_ALL_AGENTS,
    ),
    Route("GET", AGENT, Area.AGENTS, read, {200: wire.AgentDoc}, ("agent_not_found",)),
    *(
        Route(
            "POST",
            f"{AGENT}/{handler.__name__}",
            Area.AGENTS,
            handler,
            {200: wire.AgentDoc},
            _REFUSALS,
            {} if handler is resume else _AGENT_MESSAGE,
        )
        for handler in (drain, resume, retire, lost)
    ),
)
