"""The agents: what each is and does, and what operators decide about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from server.api import agents
from server.domain.access import Area
from server.domain.errors import Conflict
from server.domain.jobs import Job
from server.http.params import flag_param
from server.store import agents as rows
from server.store import queue
from server.web.site import Handler, PageRoute, Site
from shared.clock import utc
from shared.wire import AgentDoc, AgentState

_AGAIN_S: Final = 5
"""Until a page without scripts loads itself again."""
_JOBS_SHOWN: Final = 12
_ROWS_SHOWN: Final = 100
_LONGEST: Final = 500
_MOST: Final = 40
SOFT: Final = (
    "A soft limit is watched, and enforced by ending the job: between two looks a job can use more "
    "than it may. A hard limit is enforced by the kernel."
)


ACTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "drain": (
        "Drain",
        "It gets no new jobs. Those that it has go on to their end, and their results are fetched.",
        "it gets no new jobs now",
    ),
    "resume": ("Resume", "It gets jobs again, from now on.", "it is used again"),
    "retire": (
        "Retire",
        "It gets no jobs and is not contacted any more. This is refused while it has jobs: drain "
        "it first, and wait for their end.",
        "it is retired: it gets no jobs and is not contacted",
    ),
    "lost": (
        "Declare lost",
        "All attempts that it has are ended at once and tried again on other agents. Do this only "
        "when its host will not come back: processes that still run there go on, and what they "
        "leave is thrown away. This is refused while it can be reached.",
        "it was declared lost: its attempts were ended, and are tried again elsewhere",
    ),
}
"""What operators decide: the word on the button, what it means, and what is said afterwards."""


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """All agents, in cards."""
    context, every = site.context, flag_param(request, "all")
    found = await agents.listed(context, every=every)
    held = await context.core.database.read_list(
        queue.oldest_held, [one.name for one in found], _JOBS_SHOWN
    )
    views = [_view(one, held[one.name]) for one in found]
    return site.page(
        request,
        "operators/agents.html",
        title="Agents",
        refresh_s=_AGAIN_S,
        agents=views,
        every=every,
        up=sum(one.up for one in found),
        slots=sum(one.slots or 0 for one in found if one.up),
        taken=sum(one.jobs for one in found),
        soft=SOFT,
    )


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """One agent."""
    name, done = request.match_info["name"], ACTIONS.get(request.query.get("done", ""))
    return await _page(request, site, notice=f"agent {name}: {done[2]}" if done else None)


async def _page(
    request: web.Request, site: Site, status: int = HTTPStatus.OK, **more: Any
) -> web.StreamResponse:
    context = site.context
    record = await context.core.database.read(rows.find, request.match_info["name"])
    found = await agents.document(context, record)
    held = await context.core.database.read_list(queue.oldest_held, [record.name], _ROWS_SHOWN)
    return site.page(
        request,
        "operators/agent.html",
        status=status,
        title=f"Agent {record.name}",
        refresh_s=_AGAIN_S,
        agent=_view(found, held[record.name]),
        actions=ACTIONS,
        soft=SOFT,
        utc=utc,
        **more,
    )


def _decide(action: str) -> Handler:
    async def handler(request: web.Request, site: Site) -> web.StreamResponse:
        name, message = request.match_info["name"], (await request.post()).get("message", "")
        try:
            await agents.decide(site.context, name, action, str(message))
        except Conflict as problem:
            return await _page(
                request, site, HTTPStatus.CONFLICT, notice=str(problem), notice_kind="bad"
            )
        return site.go_to(agent_path(name), done=action)

    return handler


def agent_path(name: str) -> str:
    """The page of the agent with this name, which may have any characters."""
    return f"/agents/{quote(name, safe='')}"


def _view(doc: AgentDoc, jobs: Sequence[Job]) -> dict[str, Any]:
    """An agent as the pages show it."""
    kind, word = _state(doc)
    said = (doc.health or {}).get("services") if doc.health else doc.resources.get("services")
    return {
        "doc": doc,
        "path": agent_path(doc.name),
        "kind": kind,
        "word": word,
        "why": _why(doc),
        "load": load_of(doc) if doc.reachable else None,
        "sandbox": sandbox_of(doc),
        "services": [str(one) for one in said] if isinstance(said, list | tuple) else None,
        "jobs": jobs,
        "actions": _actions(doc),
    }


def _state(doc: AgentDoc) -> tuple[str, str]:
    match doc.state:
        case AgentState.RETIRED:
            return "wait", "Retired"
        case AgentState.LOST:
            return "bad", "Lost"
        case AgentState.DRAINING:
            return "doubt", "Draining" if doc.reachable else "Draining, away"
        case _:
            if doc.up:
                return "good", "Up"
            if not doc.in_settings:
                return "bad", "Not in settings"
            return ("doubt", "Takes no jobs") if doc.reachable else ("bad", "Down")


def _why(doc: AgentDoc) -> str:
    """Why it is as it is, in a sentence."""
    parts = [doc.trouble] if doc.trouble else []
    if doc.message and doc.message not in doc.trouble:
        parts.append(doc.message)
    parts += doc.warnings
    return "; ".join(parts)


def _actions(doc: AgentDoc) -> list[str]:
    """What may be decided about it now, as far as is known before somebody tries."""
    if doc.state is AgentState.RETIRED:
        return ["resume"] if doc.in_settings else []
    found = ["drain"] if doc.state is AgentState.ACTIVE else []
    if doc.in_settings and doc.state is not AgentState.ACTIVE:
        found.append("resume")
    if not doc.jobs:
        found.append("retire")
    if not doc.reachable and doc.state is not AgentState.LOST:
        found.append("lost")
    return found


# -- the sandbox, read with care: an agent can say anything


def sandbox_of(agent: AgentDoc) -> dict[str, Any] | None:
    """What the agent said last; None: nothing. ``limits`` says of each how it is enforced, how its
    last test went (``passed``; None: it was not tested) and what was ``seen``.
    """
    said = (agent.health or {}).get("sandbox")
    if not isinstance(said, Mapping):
        return None
    check = _table(said.get("check"))
    rows = check.get("rows")
    tests = {
        _text(row["limit"]): row
        for row in (rows if isinstance(rows, list) else [])[:_MOST]
        if isinstance(row, Mapping) and _text(row.get("limit"))
    }
    enforcement = {_text(name): _text(how) for name, how in _table(said.get("enforcement")).items()}
    for name, row in tests.items():
        enforcement.setdefault(name, _text(row.get("enforcement")))
    version = _text(said.get("version"))
    advice = said.get("advice")
    return {
        "backend": f"{_text(said.get('backend'))} {version}".strip(),
        "broken": _text(said.get("broken")),
        "warning": _text(said.get("warning")),
        "advice": [_text(one) for one in advice[:_MOST]] if isinstance(advice, list) else [],
        "limits": [
            {
                "name": name,
                "enforcement": how,
                "passed": _flag(tests.get(name, {}).get("passed")),
                "seen": _text(tests.get(name, {}).get("seen")),
            }
            for name, how in sorted(enforcement.items())[:_MOST]
        ],
        "checked_at": _time(check.get("at")),
        "passed": _flag(check.get("passed")),
    }


def load_of(agent: AgentDoc) -> float | None:
    """Percent of its host's processors; None: it does not say."""
    said = (agent.health or {}).get("load")
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return min(100.0, max(0.0, float(said)))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _time(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(_text(value))
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None


ROUTES: Final = (
    PageRoute("GET", "/agents", Area.AGENTS, listing),
    PageRoute("GET", "/agents/{name}", Area.AGENTS, page),
    *(
        PageRoute("POST", f"/agents/{{name}}/{name}", Area.AGENTS, _decide(name))
        for name in ACTIONS
    ),
)
