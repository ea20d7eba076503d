"""The agents, as operators see them and decide about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from aiohttp import web

from server.domain.access import Area
from server.domain.agents import REPLACED, AgentRecord
from server.http.context import Context
from server.http.documents import shown
from server.http.params import MAX_MESSAGE, JsonBody, flag, flag_param, message_of, read_body
from server.http.route import AGENT, Body, Route
from server.stages.agents import DRAINED, LOST, RETIRED
from server.store import agents, changes
from shared import wire
from shared.http.request_log import TARGET
from shared.units.durations import say_duration
from shared.units.sizes import say_count
from shared.wire import AgentDoc, AgentHealth, AgentPage, AgentState

MAX_CLOCK_S: Final = 5.0
"""Between the clocks of server and agent, until it is said."""
_LONGEST: Final = 500
"""Characters of what an agent says."""


async def listed(context: Context, *, every: bool) -> list[AgentDoc]:
    """The agents, by name.

    Args:
        every: also those that were retired and are not in the settings.
    """
    records = [
        one
        for one in await context.core.database.read(agents.all_agents)
        if every or _in_use(context, one)
    ]
    return await documents(context, *records)


async def decide(context: Context, name: str, action: str, message: str) -> AgentRecord:
    """Drain an agent, use it again (resume), retire it, or give it up (lost). Raises Conflict,
    BadField.
    """
    agents = context.stages.agents
    match action:
        case "drain":
            return await agents.drain(name, message_of(message, DRAINED))
        case "resume":
            return await agents.resume(name)
        case "retire":
            return await agents.retire(name, message_of(message, RETIRED))
    record, ended = await agents.declare_lost(name, message_of(message, LOST))
    attempts = f"{say_count(ended, 'attempt')} ended" if ended else "it had no jobs"
    return replace(record, message=f"{record.message}; {attempts}")


async def document(context: Context, record: AgentRecord) -> AgentDoc:
    """An agent, and what it does now."""
    return (await documents(context, record))[0]


async def documents(context: Context, *records: AgentRecord) -> list[AgentDoc]:
    """Some agents, and what each does now."""
    counted = await changes.totals_of(context.core.database)
    return [
        _document(context, one, counted.agents[one.name], counted.running[one.name])
        for one in records
    ]


def _in_use(context: Context, record: AgentRecord) -> bool:
    """Whether it is an agent of now: not retired, or retired and still in the settings."""
    if record.state is not AgentState.RETIRED:
        return True
    return context.stages.agents.in_settings(record.name) and record.message != REPLACED


def _document(context: Context, record: AgentRecord, jobs: int, running: int) -> AgentDoc:
    configured = context.core.registry.named(record.name)
    agent = configured if _in_use(context, record) else None
    unreachable_s = context.core.registry.unreachable_s(record.name)
    silent_s = context.core.registry.silent_s(agent) if agent else None
    trouble = agent.trouble if agent else ""
    if silent_s is not None and not trouble:
        trouble = f"agent {record.name} has not said anything for {silent_s:.0f} s"
    heard = agent is not None and agent.reachable and silent_s is None
    health = agent.health if agent else None
    missing = f"agent {record.name} is not in the server's settings"
    now: dict[str, Any] = {
        "up": agent is not None and agent.accepts_work,
        "reachable": agent is not None and agent.reachable,
        "trouble": trouble if agent else record.message if configured else missing,
        "clock_ahead_s": agent.clock_ahead_s if heard and agent else None,
        "in_settings": agent is not None,
        "jobs": jobs,
        "running": running if heard else None,
        "load": health.load if heard and health else None,
        "slots": agent.slots if agent else None,
        "max_runs": dict(agent.max_runs) if agent else {},
        "unreachable_s": None if unreachable_s is None else round(unreachable_s, 1),
    }
    now["health"] = _health(health, now) if health else None
    # The record is written once a minute at most: what this server has heard itself is newer.
    heard_at = max(record.last_heard_at or 0, (agent and agent.heard_at) or 0) or None
    doc = AgentDoc(**shown(replace(record, last_heard_at=heard_at), AgentDoc) | now)
    return doc.model_copy(update={"warnings": _warnings(doc, context.version)})


def of_clock(doc: AgentDoc) -> str:
    """That its clock is wrong, or the server's; empty: they agree, or it is not known."""
    ahead_s = doc.clock_ahead_s or 0.0
    if abs(ahead_s) <= MAX_CLOCK_S:
        return ""
    which = "ahead of" if ahead_s > 0 else "behind"
    return f"its clock is {say_duration(abs(ahead_s))} {which} the server's"


def of_version(doc: AgentDoc, servers: str) -> str:
    """That it has another version; empty: it has not, or none is known."""
    if not doc.reachable or doc.kind != "ferryman" or not doc.version:
        return ""
    if doc.version.split(".")[:2] == servers.split(".")[:2]:
        return ""
    return f"it has version {doc.version}, the server has {servers}"


def _warnings(doc: AgentDoc, servers: str) -> list[str]:
    found = [of_clock(doc), of_version(doc, servers)]
    sandbox = (doc.health or {}).get("sandbox")
    if isinstance(sandbox, Mapping):  # an agent can say anything
        found.append(str(sandbox.get("warning") or "")[:_LONGEST])
        enforcement = sandbox.get("enforcement")
        if isinstance(enforcement, Mapping):
            weak = sorted(str(name) for name, how in enforcement.items() if how != "hard")
            names = ", ".join(weak)[:_LONGEST]
            found.append(names and f"limits that a job can get around: {names}")
    return [one for one in found if one]


def _health(health: AgentHealth, now: Mapping[str, Any]) -> dict[str, Any]:
    """What it said of itself last: its health document, and its heartbeats; but how it is now only
    as far as that is known.
    """
    said = health.model_dump(exclude_none=True, exclude={"labels"})
    return said | {name: now[name] for name in ("running", "load") if name in said}


async def listing(request: web.Request, context: Context) -> AgentPage:
    """The agents, and what each does now."""
    return AgentPage(items=await listed(context, every=flag_param(request, "retired")))


async def read(request: web.Request, context: Context) -> AgentDoc:
    """One agent, by its name or id."""
    record = await context.core.database.read(agents.find, request.match_info["name"])
    return await document(context, record)


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
    Route("GET", "/api/v1/agents", Area.AGENTS, listing, {200: wire.AgentPage}, query=_RETIRED_TOO),
    Route("GET", AGENT, Area.AGENTS, read, {200: wire.AgentDoc}),
    Route("POST", AGENT, Area.AGENTS, change, {200: wire.AgentDoc}, body=_CHANGE),
)
