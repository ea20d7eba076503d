"""Every route, in one table: what the application serves, and what ``/openapi.json`` says."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.api import agents, attempts, downloads, jobs, openapi, server_status, upload
from server.api.context import CONTEXT
from server.api.route import Route
from shared import wire

OPEN_PATHS: Final = ("/openapi.json", "/swagger", "/swagger/{file}")
"""Answered without a token, too: what can be called is no secret, and a page cannot send one."""
_ZIP: Final = "application/zip"
_WAIT: Final = {"wait": "seconds to hold the request until the job has ended; at most 120"}
_JOB: Final = "/api/v1/jobs/{id}"
_ATTEMPT: Final = f"{_JOB}/attempts/{{attempt}}"

ROUTES: Final = (
    # job-orchestrator's
    Route("GET", "/", server_status.ping, {200: None}),
    Route("GET", "/health", server_status.health, {200: None, 503: None}),
    Route(
        "POST",
        "/upload",
        upload.upload,
        {
            201: wire.StatusBody,
            303: None,
            400: wire.StatusBody,
            413: wire.StatusBody,
            415: wire.StatusBody,
            422: wire.StatusBody,
            429: wire.StatusBody,
            503: wire.StatusBody,
            507: wire.StatusBody,
        },
        {"service": "so that it can be refused before the body is read", "user_id": "likewise"},
    ),
    Route(
        "GET",
        "/download/{id}",
        downloads.download,
        {200: _ZIP, 206: _ZIP, 404: wire.StatusBody},
        _WAIT,
    ),
    Route(
        "GET",
        "/download_partial/{id}",
        downloads.partial,
        {200: _ZIP, 404: wire.StatusBody, 410: wire.StatusBody},
    ),
    Route(
        "POST",
        "/terminate/{id}",
        jobs.terminate,
        {200: wire.StatusBody, 202: wire.StatusBody, 404: wire.StatusBody, 409: wire.StatusBody},
    ),
    Route("GET", "/openapi.json", openapi.document, {200: None}),
    Route("GET", "/swagger", openapi.page, {200: "text/html"}),
    Route("GET", "/swagger/{file}", openapi.asset, {200: None, 404: wire.StatusBody}),
    # ours
    Route(
        "GET",
        "/api/v1/jobs",
        jobs.page,
        {200: wire.JobPage, 400: wire.Problem},
        {
            "user": "only this user's",
            "service": "only this service's",
            "state": "only in this state",
            "tag": "only with this tag",
            "limit": "1 to 500, default 50",
            "cursor": "next of the page before",
            "idempotency_key": "with user, and nothing else: the job that was uploaded under it",
        },
    ),
    Route(
        "GET",
        _JOB,
        jobs.read,
        {200: wire.JobDoc, 404: wire.Problem},
        {**_WAIT, "seen": "return as soon as the state is another than this"},
    ),
    Route("DELETE", _JOB, jobs.delete, {204: None, 404: wire.Problem, 409: wire.Problem}),
    Route(
        "GET",
        f"{_JOB}/events",
        jobs.events,
        {200: wire.EventPage, 404: wire.Problem},
        {"after": "only events with a higher seq", "wait": "seconds to wait for one"},
    ),
    Route(
        "GET",
        f"{_JOB}/result",
        downloads.result,
        {
            200: _ZIP,
            206: _ZIP,
            202: wire.JobDoc,
            404: wire.Problem,
            409: wire.Problem,
            410: wire.Problem,
        },
        _WAIT,
    ),
    Route("GET", f"{_JOB}/attempts", attempts.page, {200: wire.AttemptPage, 404: wire.Problem}),
    Route("GET", _ATTEMPT, attempts.read, {200: wire.AttemptDoc, 404: wire.Problem}),
    Route(
        "GET",
        f"{_ATTEMPT}/result",
        attempts.result,
        {200: _ZIP, 206: _ZIP, 404: wire.Problem, 409: wire.Problem, 410: wire.Problem},
    ),
    Route(
        "GET",
        f"{_ATTEMPT}/logs/{{stream}}",
        attempts.log,
        {200: "text/plain", 404: wire.Problem, 409: wire.Problem, 410: wire.Problem},
    ),
    Route(
        "POST",
        f"{_JOB}/cancel",
        jobs.cancel,
        {200: wire.JobDoc, 202: wire.JobDoc, 404: wire.Problem, 409: wire.Problem},
    ),
    Route("GET", "/api/v1/services", server_status.services, {200: None}),
    Route("GET", "/api/v1/agents", agents.listing, {200: None}),
)


def add_routes(application: web.Application) -> None:
    """Serve the table."""
    application[openapi.DOCUMENT] = openapi.describe(ROUTES, application[CONTEXT].version)
    for route in ROUTES:
        methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        for method in methods:
            application.router.add_route(method, route.path, route.handler)
