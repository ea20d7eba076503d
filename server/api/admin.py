"""Forgetting a user."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from pydantic import field_validator

from server.domain.access import Area
from server.domain.upload_fields import USER_ID
from server.http.bodies import JsonBody, read_body
from server.http.context import Context
from server.http.route import Body, Route
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import TARGET
from shared.wire import ForgottenDoc, WaitingJob


class ForgetUserBody(JsonBody):
    """What ``POST /api/v1/forget-user`` takes."""

    user: str
    """Whose data is to go."""
    dry_run: bool = False
    """Only count it."""

    @field_validator("user")
    @classmethod
    def _is_user(cls, value: str) -> str:
        if not USER_ID.fullmatch(value):
            raise ValueError("no user is called so")
        return value


async def forget_user(request: web.Request, context: Context) -> ForgottenDoc:
    """Remove all data of a user. Jobs whose agent is away are left: call it again then."""
    body = await read_body(request, ForgetUserBody)
    request[TARGET] = context.forget_user.instead(body.user)
    if body.dry_run:
        found = await context.forget_user.look(body.user)
        return ForgottenDoc(found=found, done=not any(found.values()))
    report = await context.forget_user(request[PRINCIPAL], body.user)
    return ForgottenDoc(
        removed=report.removed,
        waiting=[WaitingJob(id=job, why=why) for job, why in sorted(report.waiting.items())],
        kept=report.kept,
        done=not report.waiting,
    )


_FORGET: Final = Body(
    "application/json",
    {
        "type": "object",
        "required": ["user"],
        "properties": {
            "user": {"type": "string", "pattern": f"^{USER_ID.pattern}$"},
            "dry_run": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
    {"user": "ann"},
    ForgetUserBody,
)

ROUTES: Final = (
    Route(
        "POST",
        "/api/v1/forget-user",
        Area.ADMIN,
        forget_user,
        {200: ForgottenDoc},
        body=_FORGET,
    ),
)
