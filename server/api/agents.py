"""The agents, as operators see them and decide about them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.agents import REPLACED, AgentRecord
from server.http.context import Context
from server.http.documents import shown
from server.http.parameter_types import flag, word
from server.http.params import MAX_MESSAGE, flag_param, message_param
from server.http.paths import AGENT
from server.http.route import Route
from server.ports import Agent
from shared import wire
from shared.units.sizes import say_count
from shared.wire import AgentDoc, AgentPage, AgentState


async def listing(request: web.Request, context: Context) -> AgentPage:
    """The agents, and what each does now."""
    every = flag_param(request, "all")
    shown = [one for one in await context.agents.all() if every or _in_use(context, one)]
    return AgentPage(items=await _documents(context, *shown))


async def read(request: web.Request, context: Context) -> AgentDoc:
    """One agent, by its name or id."""
    return await _current(context, await context.agents.find(request.match_info["name"]))


async def drain(request: web.Request, context: Context) -> AgentDoc:
    """Give the agent no new jobs; those that it has are followed to their end."""
    message = message_param(request, "drained by an operator")
    return await _current(context, await context.agents.drain(request.match_info["name"], message))


async def resume(request: web.Request, context: Context) -> AgentDoc:
    """Use the agent again, after it was drained, retired or declared lost."""
    return await _current(context, await context.agents.resume(request.match_info["name"]))


async def retire(request: web.Request, context: Context) -> AgentDoc:
    """Use the agent no more: it gets no jobs and is not contacted."""
    message = message_param(request, "retired by an operator")
    return await _current(context, await context.agents.retire(request.match_info["name"], message))


async def lost(request: web.Request, context: Context) -> AgentDoc:
    """End all attempts of an agent that cannot be reached, because it will not come back."""
    message = message_param(request, "declared lost by an operator")
    record, ended = await context.agents.declare_lost(request.match_info["name"], message)
    attempts = f"{say_count(ended, 'attempt')} ended" if ended else "it had no jobs"
    return await _current(context, replace(record, message=f"{record.message}; {attempts}"))


def _in_use(context: Context, record: AgentRecord) -> bool:
    """Whether it is an agent of now: not retired, or retired and still in the settings."""
    if record.state is not AgentState.RETIRED:
        return True
    return context.agents.in_settings(record.name) and record.message != REPLACED


async def _current(context: Context, record: AgentRecord) -> AgentDoc:
    return (await _documents(context, record))[0]


async def _documents(context: Context, *records: AgentRecord) -> list[AgentDoc]:
    jobs, running = Counter[str](), Counter[str]()
    for one in await context.jobs.held():
        jobs[one.agent] += one.slots
        running[one.agent] += one.running
    return [
        _document(context, record, jobs[record.name], running[record.name]) for record in records
    ]


def _document(context: Context, record: AgentRecord, jobs: int, running: int) -> AgentDoc:
    configured = context.fleet.named(record.name)
    agent = configured if _in_use(context, record) else None
    unreachable_s = context.fleet.unreachable_s(record.name)
    missing = f"agent {record.name} is not in the server's settings"
    now: dict[str, Any] = {
        "up": agent is not None and agent.accepts_work,
        "reachable": agent is not None and agent.reachable,
        "trouble": agent.trouble if agent else record.message if configured else missing,
        "in_settings": agent is not None,
        "jobs": jobs,
        "running": running,
        "slots": agent.slots if agent else None,
        "health": _health(agent) if agent else None,
        "unreachable_s": None if unreachable_s is None else round(unreachable_s, 1),
    }
    return AgentDoc(**shown(record, AgentDoc) | now)


def _health(agent: Agent) -> dict[str, Any] | None:
    """Its latest health document, without the number of running jobs, which is out of date."""
    if agent.health is None:
        return None
    return agent.health.model_dump(exclude_none=True, exclude={"labels", "running"})


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
