"""The services: what may be asked for, how busy each is, and what operators decide about them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.service import Service
from server.http.context import Context
from server.http.params import MAX_MESSAGE, flag, flag_param, json_body, message_param, word
from server.http.route import SERVICE, SERVICES, Body, Route, json_answer
from server.http.service_documents import SERVICE_FIELDS, gone_documents, service_document
from server.stages.services import PAUSED
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.wire import ServiceDoc, ServicePage

_MAX_BODY: Final = 256 << 10


async def listing(request: web.Request, context: Context) -> ServicePage:
    """The services: what may be asked for, and how busy each is."""
    every = flag_param(request, "retired")
    shown = [one for one in context.core.services.values() if every or not one.retired]
    items = [await _shown(request, context, service) for service in shown]
    return ServicePage(items=items + await gone_documents(request[PRINCIPAL], context))


async def read(request: web.Request, context: Context) -> ServiceDoc:
    """One service."""
    return await service_document(
        request[PRINCIPAL], context, context.stages.services.find(request.match_info["name"])
    )


async def put(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a service, or replace its settings; not for those of the settings file."""
    settings = await json_body(request, _MAX_BODY)
    env = _variables("env", settings.pop("env", None))
    service, is_new = await context.stages.services.put(
        request.match_info["name"], settings, env, request[PRINCIPAL].name
    )
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return json_answer(await _shown(request, context, service), status)


async def retire(request: web.Request, context: Context) -> ServiceDoc:
    """Take no new jobs for the service; those that it has go on to their end."""
    name, by = request.match_info["name"], request[PRINCIPAL].name
    return await service_document(
        request[PRINCIPAL], context, await context.stages.services.retire(name, by)
    )


async def pause(request: web.Request, context: Context) -> ServiceDoc:
    """Let the queued jobs of the service wait; those that were sent go on."""
    name, by = request.match_info["name"], request[PRINCIPAL].name
    message = message_param(request, PAUSED)
    return await service_document(
        request[PRINCIPAL], context, await context.stages.services.pause(name, message, by)
    )


async def resume(request: web.Request, context: Context) -> ServiceDoc:
    """Send the jobs of a paused service again."""
    name, by = request.match_info["name"], request[PRINCIPAL].name
    return await service_document(
        request[PRINCIPAL], context, await context.stages.services.pause(name, None, by)
    )


async def _shown(request: web.Request, context: Context, service: Service) -> ServiceDoc:
    return await service_document(request[PRINCIPAL], context, service)


def _variables(field: str, given: Any) -> Mapping[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(one, str) for one in given.values()):
        why = f'{field}: should be an object of texts, as in {{"NAME": "value"}}'
        raise BadField(field, f"invalid_{field}", why)
    return given


_ALL_SERVICES: Final = {"retired": flag("1: also those that were retired")}
_SERVICE_MESSAGE: Final = {
    "message": word("why; shown with the service and its jobs, one line", MAX_MESSAGE)
}
_BODY: Final = Body(
    "application/json",
    {
        "type": "object",
        "properties": {
            name: {"description": text, "examples": [such]}
            for name, (text, such) in SERVICE_FIELDS.items()
        },
        "additionalProperties": False,
    },
    {"timeout": "30m", "runs_per_user": 2},
)

ROUTES: Final = (
    Route("GET", SERVICES, Area.STATUS, listing, {200: wire.ServicePage}, query=_ALL_SERVICES),
    Route("GET", SERVICE, Area.STATUS, read, {200: wire.ServiceDoc}),
    Route(
        "PUT", SERVICE, Area.SERVICES, put, {200: wire.ServiceDoc, 201: wire.ServiceDoc}, body=_BODY
    ),
    Route("DELETE", SERVICE, Area.SERVICES, retire, {200: wire.ServiceDoc}),
    Route(
        "POST", f"{SERVICE}/pause", Area.SERVICES, pause, {200: wire.ServiceDoc}, _SERVICE_MESSAGE
    ),
    Route("POST", f"{SERVICE}/resume", Area.SERVICES, resume, {200: wire.ServiceDoc}),
)
