"""The secret that signs webhooks."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import BadField, NotAllowed
from server.http.context import Context
from server.http.params import word
from server.http.route import Route
from shared.http.authentication import PRINCIPAL
from shared.principals import Role, Scope
from shared.wire import WebhookSecret

_PATH: Final = "/api/v1/webhook-secret"
_MAX_NAME: Final = 200


async def read(request: web.Request, context: Context) -> WebhookSecret:
    """The secret that signs the webhooks of the caller's jobs; for operators also of others."""
    name = _principal(request)
    return WebhookSecret(principal=name, secrets=await context.stages.webhooks.secrets(name))


async def replace(request: web.Request, context: Context) -> WebhookSecret:
    """Make another one; for a day both sign."""
    name = _principal(request)
    found = await context.stages.webhooks.secrets(name, replace=True)
    return WebhookSecret(principal=name, secrets=found)


def _principal(request: web.Request) -> str:
    caller = request[PRINCIPAL]
    name = str(request.query.get("principal", caller.name))
    if not 0 < len(name) <= _MAX_NAME:
        why = f"principal should be a name of at most {_MAX_NAME} characters"
        raise BadField("principal", "invalid_principal", why)
    if name != caller.name and caller.role is not Role.OPERATOR:
        raise NotAllowed(f"{caller.name} may read its own webhook secret only")
    return name


_WHOSE: Final = {"principal": word("for operators: whose jobs", _MAX_NAME)}
ROUTES: Final = (
    Route("GET", _PATH, Area.JOBS, read, {200: WebhookSecret}, _WHOSE, needs=Scope.SUBMIT),
    Route("POST", _PATH, Area.JOBS, replace, {200: WebhookSecret}, _WHOSE, needs=Scope.SUBMIT),
)
