"""The services: how busy each is, the settings that hold, and pause, resume and retire."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import Conflict
from server.domain.service import Service
from server.http.params import flag_param, message_of
from server.http.service_documents import SERVICE_FIELDS, gone_documents, service_document
from server.stages.services import PAUSED
from server.web.site import Handler, PageRoute, Site
from shared.http.authentication import PRINCIPAL
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import JobState, Limits, ServiceDoc

_AGAIN_S: Final = 5
_DONE: Final = {
    "pause": "its queued jobs wait; those that were sent go on",
    "resume": "its jobs are sent again",
    "retire": "it takes no new jobs; those that it has go on to their end",
}


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """All services."""
    context, every = site.context, flag_param(request, "all")
    views = [
        _view(await service_document(request[PRINCIPAL], context, one))
        for one in context.core.services.values()
        if every or not one.retired
    ]
    views += [_view(one) for one in await gone_documents(request[PRINCIPAL], context)]
    return site.page(
        request,
        "operators/services.html",
        title="Services",
        refresh_s=_AGAIN_S,
        services=sorted(views, key=lambda one: one["doc"].name),
        every=every,
    )


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """One service."""
    name, done = request.match_info["name"], _DONE.get(request.query.get("done", ""))
    return await _page(request, site, notice=f"service {name}: {done}" if done else None)


async def _page(
    request: web.Request, site: Site, status: int = HTTPStatus.OK, **more: Any
) -> web.StreamResponse:
    context, principal = site.context, request[PRINCIPAL]
    service = context.stages.services.find(request.match_info["name"])
    doc = await service_document(principal, context, service)
    return site.page(
        request,
        "operators/service.html",
        status=status,
        title=f"Service {service.name}",
        refresh_s=_AGAIN_S,
        service=_view(doc),
        settings=settings_of(service),
        states=[(one, count) for one, count in doc.counts.items() if count],
        **more,
    )


def _decide(action: str) -> Handler:
    async def handler(request: web.Request, site: Site) -> web.StreamResponse:
        services, by = site.context.stages.services, request[PRINCIPAL].name
        name = services.find(request.match_info["name"]).name
        try:
            if action == "pause":
                typed = str((await request.post()).get("message", ""))
                await services.pause(name, message_of(typed, PAUSED), by)
            elif action == "resume":
                await services.pause(name, None, by)
            else:
                await services.retire(name, by)
        except Conflict as problem:
            return await _page(
                request, site, HTTPStatus.CONFLICT, notice=str(problem), notice_kind="bad"
            )
        return site.go_to(service_path(name), done=action)

    return handler


def service_path(name: str) -> str:
    """The page of a service."""
    return f"/services/{name}"


def _view(doc: ServiceDoc) -> dict[str, Any]:
    """A service as the pages show it: ``kind`` and ``word`` for the eye, ``why`` as a sentence."""
    kind, shown, why = "good", "Open", ""
    if doc.source == "none":
        why = "it is in no settings any more: its queued jobs wait until an operator moves them"
        kind, shown = "bad", "Gone"
    elif doc.retired:
        kind, shown, why = "wait", "Retired", "it takes no new jobs"
    elif doc.paused:
        kind, shown, why = "doubt", "Paused", f"its queued jobs wait: {doc.paused_message}"
    elif not doc.offered:
        kind, shown, why = "bad", "Not offered", "no agent of this server offers it: its jobs wait"
    found = {"doc": doc, "path": service_path(doc.name), "kind": kind, "word": shown, "why": why}
    for name, state in (("waiting", JobState.QUEUED), ("failed", JobState.FAILED)):
        count = doc.counts.get(state, 0)
        found[name] = f"{count:,}" + ("+" if count >= doc.counts_up_to else "")
    return found


# -- the settings that hold, in people's words

_ZERO: Final = {
    "queued_per_user": "any number",
    "timeout": "no limit",
    "queue_timeout": "for ever",
    "expires_after": "for ever",
    "forget_after": "never",
    "heartbeat_timeout": "off",
    "dead_letter_expires_after": "for ever",
}
"""What 0 means."""
_PLAIN: Final = ("env", "limits")
"""They are no single values."""
_LIMITS: Final = {
    "limits.cpus": "processors of an attempt",
    "limits.memory": "memory of an attempt",
    "limits.pids": "processes and threads of an attempt",
    "limits.disk": "what an attempt may write",
    "limits.log": "what is kept of stdout, and of stderr",
    "limits.results": "what a result may have",
    "limits.network": "whether an attempt may use its host's network",
}
MEANINGS: Final[Mapping[str, str]] = {
    **{key: text for key, (text, _) in SERVICE_FIELDS.items() if key not in _PLAIN},
    **_LIMITS,
}


_DURATIONS: Final = frozenset(key for key in MEANINGS if hasattr(Service, f"{key}_s"))


def values_of(service: Service) -> dict[str, str]:
    """Each setting, as people read it."""
    retry, limits = service.retry, service.limits
    found: dict[str, Any] = {
        key: getattr(service, f"{key}_s") if key in _DURATIONS else getattr(service, key, None)
        for key in MEANINGS
        if "." not in key
    }
    found |= {
        "retries": retry.retries,
        "retry_delays": ", ".join(map(say_duration, retry.delays_s)),
        "backoff": retry.backoff.value if retry.backoff else "none: retry_delays say",
        "retry_delay": say_duration(retry.delay_s),
        "max_retry_delay": say_duration(retry.max_delay_s),
        "retry_on": ", ".join(sorted(retry.retry_on)) or "nothing",
        "no_retry_on": ", ".join(sorted(retry.no_retry_on)) or "nothing",
    }
    found |= {f"limits.{name}": getattr(limits, name) for name in Limits.model_fields}
    return {key: _said(key, found[key]) for key in MEANINGS}


def _said(key: str, value: Any) -> str:
    if key in _ZERO and not value:
        return _ZERO[key]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in _DURATIONS:
        return say_duration(value)
    if key.startswith("limits.") and key not in ("limits.cpus", "limits.pids"):
        return say_size(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


_DEFAULTS: Final[Mapping[str, str]] = values_of(Service("default"))


def settings_of(service: Service) -> list[tuple[str, str, str, str, bool]]:
    """All settings of a service but variables: key, what it means, value, default, and whether it
    was given.
    """
    values = values_of(service)
    return [
        (key, means, values[key], _DEFAULTS[key], key in service.given)
        for key, means in MEANINGS.items()
    ]


_NAME: Final = "/services/{name}"
ROUTES: Final = (
    PageRoute("GET", "/services", Area.STATUS, listing),
    PageRoute("GET", _NAME, Area.STATUS, page),
    *(
        PageRoute("POST", f"{_NAME}/{action}", Area.SERVICES, _decide(action))
        for action in ("pause", "resume", "retire")
    ),
)
