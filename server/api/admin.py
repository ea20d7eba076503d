"""Rare work of operators."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.api.jobs import job_answer
from server.domain.access import Area
from server.http.context import Context
from server.http.parameter_types import flag, word
from server.http.params import flag_param, job_id
from server.http.paths import JOB
from server.http.route import Route
from shared import wire
from shared.http.authentication import PRINCIPAL

_MAX_NAME: Final = 64


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
)
