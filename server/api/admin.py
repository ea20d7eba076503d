"""Rare work of operators."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from pydantic import field_validator

from server.api.codes import JSON
from server.api.jobs import job_answer
from server.domain.access import Area
from server.domain.upload_fields import USER_ID
from server.http.bodies import JsonBody, read_body
from server.http.context import Context
from server.http.parameter_types import flag, word
from server.http.params import flag_param, job_id
from server.http.paths import JOB
from server.http.route import Body, Route
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import TARGET
from shared.wire import ForgottenDoc, WaitingJob

_MAX_NAME: Final = 64


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


async def requeue(request: web.Request, context: Context) -> web.StreamResponse:
    """Queue a job again that a retry does not: Completed, stuck at an agent, of an old service."""
    job = await context.requeue(
        request[PRINCIPAL],
        job_id(request),
        service=request.query.get("service") or None,
        lost=flag_param(request, "lost"),
        dry_run=flag_param(request, "dry_run"),
    )
    return await job_answer(context, job)


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
_REQUEUE: Final = {
    "service": word("the service that it is of from now on", _MAX_NAME),
    "lost": flag("1: its agent cannot be reached, and will not come back"),
    "dry_run": flag("1: only say whether it can be done"),
}
_NOT_REQUEUED: Final = (
    "not_retryable",
    "bundle_gone",
    "being_deleted",
    "parent_ended",
    (409, "unknown_service"),
    "agent_reachable",
    (409, "agent_unreachable"),
    "queue_full",
)

ROUTES: Final = (
    Route(
        "POST",
        f"{JOB}/requeue",
        Area.AGENTS,
        requeue,
        {200: wire.JobDoc},
        ("job_not_found", *_NOT_REQUEUED),
        _REQUEUE,
    ),
    Route(
        "POST",
        "/api/v1/forget-user",
        Area.ADMIN,
        forget_user,
        {200: ForgottenDoc},
        (*JSON, "missing_user"),
        body=_FORGET,
    ),
)
