"""The services: what may be asked for, how busy each is, and what operators decide about them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area, Visible, visible
from server.domain.errors import BadField
from server.domain.service import Service
from server.http.context import Context
from server.http.documents import retry_doc
from server.http.parameter_types import flag, word
from server.http.params import MAX_MESSAGE, flag_param, json_body, message_param
from server.http.paths import SERVICE, SERVICES
from server.http.route import Body, Route, json_answer
from shared import wire
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.principals import Role
from shared.wire import ServiceDoc, ServicePage, ServiceWebhookDoc

_COUNTED: Final = 10_000
"""Jobs of one state of one service, at most."""
_MAX_BODY: Final = 256 << 10
_VARIABLES: Final = ("env", "secrets")


async def listing(request: web.Request, context: Context) -> ServicePage:
    """The services: what may be asked for, and how busy each is."""
    every = flag_param(request, "all")
    shown = [one for one in context.services.values() if every or not one.retired]
    items = [await _document(request, context, service) for service in shown]
    return ServicePage(items=items)


async def read(request: web.Request, context: Context) -> ServiceDoc:
    """One service."""
    return await _document(request, context, context.services.find(request.match_info["name"]))


async def put(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a service, or replace its settings; not for those of the settings file."""
    settings = await json_body(request, _MAX_BODY)
    env, secrets = (_variables(name, settings.pop(name, None)) for name in _VARIABLES)
    service, is_new = await context.services.put(
        request.match_info["name"], settings, env, secrets, request[PRINCIPAL].name
    )
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return json_answer(await _document(request, context, service), status)


async def retire(request: web.Request, context: Context) -> ServiceDoc:
    """Take no new jobs for the service; those that it has go on to their end."""
    name, by = request.match_info["name"], request[PRINCIPAL].name
    return await _document(request, context, await context.services.retire(name, by))


async def pause(request: web.Request, context: Context) -> ServiceDoc:
    """Let the queued jobs of the service wait; those that were sent go on."""
    name, by = request.match_info["name"], request[PRINCIPAL].name
    message = message_param(request, "paused by an operator")
    return await _document(request, context, await context.services.pause(name, message, by))


async def resume(request: web.Request, context: Context) -> ServiceDoc:
    """Send the jobs of a paused service again."""
    name, by = request.match_info["name"], request[PRINCIPAL].name
    return await _document(request, context, await context.services.resume(name, by))


def _variables(field: str, given: Any) -> Mapping[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(one, str) for one in given.values()):
        why = f'{field}: should be an object of texts, as in {{"NAME": "value"}}'
        raise BadField(field, f"invalid_{field}", why)
    return given


async def _document(request: web.Request, context: Context, service: Service) -> ServiceDoc:
    principal = request[PRINCIPAL]
    # An agent has no jobs, and sees how busy a service is as operators do.
    where = Visible() if principal.role is Role.AGENT else visible(principal)
    load = await context.services.load(service.name, _COUNTED, where)
    record = service.record
    own: dict[str, Any] = {}
    if principal.role is Role.OPERATOR:
        own["env"] = sorted(service.env.keys() - service.secrets)
        own["secrets"] = sorted(service.secrets)
        if service.webhook is not None:
            events = sorted(service.webhook.events)
            own["webhook"] = ServiceWebhookDoc(url=service.webhook.url, events=events)
        own["settings"] = None if service.in_file or record is None else record.settings
    return ServiceDoc(
        name=service.name,
        source="file" if service.in_file else "api",
        paused=service.paused,
        paused_message=service.paused_message,
        retired=service.retired,
        offered=context.fleet.offered(service.name),
        in_work=load.in_work,
        counts=dict(load.by_state),
        counts_up_to=_COUNTED,
        oldest_queued_at=utc(load.oldest_queued_at) if load.oldest_queued_at is not None else None,
        retry=retry_doc(service.retry),
        limits=service.limits,
        changed_at=utc(record.changed_at) if record is not None and record.changed_at else None,
        **{name: getattr(service, name) for name in _SAME},
        **own,
    )


_SAME: Final = (
    "runs_per_user",
    "max_runs",
    "queued_per_user",
    "timeout_s",
    "queue_timeout_s",
    "heartbeat_timeout_s",
    "expires_after_s",
    "forget_after_s",
    "max_retries",
    "infra_retries",
    "retry_later_delay_s",
    "retry_later_limit",
    "on_shutdown",
    "dead_letter",
    "dead_letter_expires_after_s",
    "max_children",
)
"""What a document shows under the names that the service has for it."""


_ALL_SERVICES: Final = {"all": flag("1: also those that were retired")}
_SERVICE_MESSAGE: Final = {
    "message": word("why; shown with the service and its jobs, one line", MAX_MESSAGE)
}
_NOT_PUT: Final = (
    "invalid_json",
    "body_too_large",
    "invalid_name",
    "invalid_settings",
    *(f"invalid_{name}" for name in _VARIABLES),
    "service_in_file",
    "too_many_services",
)
_UNKNOWN: Final = ("service_not_found",)
_FIELDS: Final[Mapping[str, tuple[str, object]]] = {
    "runs_per_user": ("jobs of one user that are sent or running at once", 5),
    "max_runs": ("the same, of all users", 10),
    "queued_per_user": ("most jobs of one user that may wait; 0: any number", 0),
    "timeout": ("wall time of an attempt", "1h"),
    "queue_timeout": ("longest wait without a start; 0: for ever", "0s"),
    "expires_after": ("how long everything is kept after the end; 0: for ever", "2d"),
    "forget_after": ("from the end until a job is forgotten altogether; 0: never", "90d"),
    "heartbeat_timeout": ("longest time without output or heartbeat; 0: off", "0s"),
    "retries": ("how often a failed attempt is repeated", 0),
    "max_retries": ("the most that an upload may ask for", 10),
    "retry_delays": ("before the first, second … retry; the last one repeats", ["10s", "1m"]),
    "backoff": ("how retries are delayed, in place of retry_delays", "exponential"),
    "retry_delay": ("the base of backoff", "30s"),
    "max_retry_delay": ("the longest delay of backoff", "1h"),
    "retry_on": ("reasons and exit codes that are retried", ["timeout", "exit:3"]),
    "no_retry_on": ("those that are not, whatever retry_on says", ["exit:4"]),
    "infra_retries": ("repeats of attempts that were interrupted", 5),
    "retry_later_delay": ("where a job asks to be tried later and says no time", "60s"),
    "retry_later_limit": ("how often one run may ask for that", 100),
    "on_shutdown": ("what a stopping agent does: stop, resubmit or continue", "stop"),
    "dead_letter": ("whether jobs that failed for good are kept", False),
    "dead_letter_expires_after": ("or until so long after they ended; 0: for ever", "0s"),
    "max_children": ("most children of one batch", 10_000),
    "webhook": ("where its jobs are announced", {"url": "https://example.org/hooks"}),
    "limits": ("what one attempt may use", {"cpus": 1, "memory": "2GiB"}),
    "env": ("variables of its jobs; left out: as they are", {"DATA": "/data"}),
    "secrets": ("the same for what is secret; written only", {"KEY": "…"}),
}
"""What ``[services.NAME]`` of the settings file takes, with an example of each."""
_BODY: Final = Body(
    "application/json",
    {
        "type": "object",
        "properties": {
            name: {"description": text, "examples": [such]}
            for name, (text, such) in _FIELDS.items()
        },
        "additionalProperties": False,
    },
    {"timeout": "30m", "runs_per_user": 2},
)

ROUTES: Final = (
    Route(
        "GET",
        SERVICES,
        Area.STATUS,
        listing,
        {200: wire.ServicePage},
        query=_ALL_SERVICES,
    ),
    Route("GET", SERVICE, Area.STATUS, read, {200: wire.ServiceDoc}, _UNKNOWN),
    Route(
        "PUT",
        SERVICE,
        Area.SERVICES,
        put,
        {200: wire.ServiceDoc, 201: wire.ServiceDoc},
        _NOT_PUT,
        body=_BODY,
    ),
    Route(
        "DELETE",
        SERVICE,
        Area.SERVICES,
        retire,
        {200: wire.ServiceDoc},
        (*_UNKNOWN, "service_in_file"),
    ),
    Route(
        "POST",
        f"{SERVICE}/pause",
        Area.SERVICES,
        pause,
        {200: wire.ServiceDoc},
        _UNKNOWN,
        _SERVICE_MESSAGE,
    ),
    Route("POST", f"{SERVICE}/resume", Area.SERVICES, resume, {200: wire.ServiceDoc}, _UNKNOWN),
)
