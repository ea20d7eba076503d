"""The services: how busy each is, its settings, and what operators decide about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area, may_use
from server.domain.errors import BadField, ServiceRefusal
from server.domain.service import Service
from server.http.parameter_types import flag, word
from server.http.params import flag_param, message_of
from server.http.service_documents import gone_documents, service_document
from server.stages.services import PAUSED
from server.web.operators import settings
from server.web.operators.decisions import decisions
from server.web.site.page_route import Handler, PageRoute
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL
from shared.principals import Scope
from shared.wire import JobState, ServiceDoc

_AGAIN_S: Final = 5
_DONE: Final = {
    "pause": "its queued jobs wait; those that were sent go on",
    "resume": "its jobs are sent again",
    "retire": "it takes no new jobs; those that it has go on to their end",
    "settings": "its settings hold for new work from now on",
}
_VARIABLES: Final = ("env", "secrets")


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service as the pages show it.

    Attributes:
        kind, word, why: how it is, for the eye and in a sentence.
    """

    doc: ServiceDoc
    path: str
    kind: str
    word: str
    why: str

    @property
    def waiting(self) -> str:
        return self._count(self.doc.counts.get(JobState.QUEUED, 0))

    @property
    def failed(self) -> str:
        return self._count(self.doc.counts.get(JobState.FAILED, 0))

    def _count(self, count: int) -> str:
        return f"{count:,}" + ("+" if count >= self.doc.counts_up_to else "")


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """All services."""
    context, every = site.context, flag_param(request, "all")
    views = [
        _view(await service_document(request[PRINCIPAL], context, one))
        for one in context.services.values()
        if every or not one.retired
    ]
    views += [_view(one) for one in await gone_documents(request[PRINCIPAL], context)]
    return site.page(
        request,
        "operators/services.html",
        title="Services",
        refresh_s=_AGAIN_S,
        services=sorted(views, key=lambda one: one.doc.name),
        every=every,
    )


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """One service."""
    done = request.query.get("done", "")
    name = request.match_info["name"]
    return await _page(
        request, site, notice=f"service {name}: {_DONE[done]}" if done in _DONE else None
    )


async def _page(
    request: web.Request,
    site: Site,
    status: int = HTTPStatus.OK,
    texts: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    **more: Any,
) -> web.StreamResponse:
    """Args:
    texts: what was typed into the form, if it is to be shown again.
    errors: field -> what is wrong with it.
    """
    context, principal = site.context, request[PRINCIPAL]
    service = context.services.find(request.match_info["name"])
    doc = await service_document(principal, context, service)
    operates = may_use(principal, Area.SERVICES, "POST")
    given = settings.given_texts(doc.settings or {}) if texts is None else texts
    return site.page(
        request,
        "operators/service.html",
        status=status,
        title=f"Service {service.name}",
        refresh_s=None if errors else _AGAIN_S,
        service=_view(doc),
        settings=settings.settings_of(service),
        fields=settings.form_of(given, errors or {}) if operates and not service.in_file else None,
        texts=given,
        errors=errors or {},
        is_open=bool(errors),
        states=[(one, count) for one, count in doc.counts.items() if count],
        decisions=await decisions(request, context, service.name, "services/{name}"),
        **more,
    )


async def pause(site: Site, service: Service, form: Mapping[str, Any], by: str) -> None:
    message = message_of(str(form.get("message", "")), PAUSED)
    await site.context.services.pause(service.name, message, by)


async def resume(site: Site, service: Service, _: Mapping[str, Any], by: str) -> None:
    await site.context.services.resume(service.name, by)


async def retire(site: Site, service: Service, _: Mapping[str, Any], by: str) -> None:
    await site.context.services.retire(service.name, by)


def _decide(action: str) -> Handler:
    do = {"pause": pause, "resume": resume, "retire": retire}[action]

    async def handler(request: web.Request, site: Site) -> web.StreamResponse:
        service = site.context.services.find(request.match_info["name"])
        try:
            await do(site, service, await request.post(), request[PRINCIPAL].name)
        except ServiceRefusal as problem:
            return await _page(
                request, site, HTTPStatus.CONFLICT, notice=str(problem), notice_kind="bad"
            )
        return site.go_to(service_path(service.name), done=action)

    return handler


async def change(request: web.Request, site: Site) -> web.StreamResponse:
    """Replace the settings of a service that operators made."""
    site.context.services.find(request.match_info["name"])
    errors = await _put(request, site, request.match_info["name"])
    if not errors:
        return site.go_to(service_path(request.match_info["name"]), done="settings")
    form = await request.post()
    texts = {name: str(value) for name, value in form.items()}
    return await _page(request, site, HTTPStatus.BAD_REQUEST, texts, errors)


async def _put(request: web.Request, site: Site, name: str) -> dict[str, str]:
    """Make a service, or replace its settings; field -> what is wrong."""
    form, by = await request.post(), request[PRINCIPAL].name
    given: dict[str, Any] = {}
    for field in _VARIABLES:
        try:
            given[field] = settings.sent_variables(str(form.get(field, "")))
        except ValueError as problem:
            return {field: str(problem)}
    try:
        await site.context.services.put(
            name, settings.sent_settings(form), given["env"], given["secrets"], by
        )
    except BadField as problem:
        found = settings.errors_of(str(problem))
        return found if problem.code == "invalid_settings" else {problem.field: str(problem)}
    except ServiceRefusal as problem:
        return {"name": str(problem)}
    return {}


async def new(request: web.Request, site: Site) -> web.StreamResponse:
    """The form for a new service."""
    return _new_page(request, site, {}, {})


async def make(request: web.Request, site: Site) -> web.StreamResponse:
    """Make a service."""
    form = await request.post()
    name = str(form.get("name", "")).strip()
    if name in site.context.services:
        errors = {"name": f"there is a service {name[:64]} already"}
    else:
        errors = await _put(request, site, name)
    if not errors:
        return site.go_to(service_path(name), done="settings")
    texts = {field: str(value) for field, value in form.items()}
    return _new_page(request, site, texts, errors, HTTPStatus.BAD_REQUEST)


def _new_page(
    request: web.Request,
    site: Site,
    texts: Mapping[str, str],
    errors: Mapping[str, str],
    status: int = HTTPStatus.OK,
) -> web.StreamResponse:
    return site.page(
        request,
        "operators/new_service.html",
        status=status,
        title="New service",
        fields=settings.form_of(texts, errors),
        texts=texts,
        errors=errors,
    )


def service_path(name: str) -> str:
    """The page of a service."""
    return f"/services/{name}"


def _view(doc: ServiceDoc) -> ServiceView:
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
    return ServiceView(doc, service_path(doc.name), kind, shown, why)


_NAME: Final = "/services/{name}"
ROUTES: Final = (
    PageRoute(
        "GET",
        "/services",
        Area.STATUS,
        listing,
        query={"all": flag("1: also those that were retired")},
    ),
    PageRoute("GET", _NAME, Area.STATUS, page, query={"done": word("what was just done", 16)}),
    PageRoute("POST", _NAME, Area.SERVICES, change),
    PageRoute("GET", "/new-service", Area.SERVICES, new, needs=Scope.OPERATE),
    PageRoute("POST", "/new-service", Area.SERVICES, make),
    *(
        PageRoute("POST", f"{_NAME}/{action}", Area.SERVICES, _decide(action))
        for action in ("pause", "resume", "retire")
    ),
)
