"""``/openapi.json`` from the route table and the wire models, and a page that shows it."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib import resources
from typing import Any, Final

from aiohttp import web
from pydantic.json_schema import models_json_schema

from server.api.context import Context
from server.api.parameter_types import Param
from server.api.problems import Refusal
from server.api.route import Answer, Body, Route
from server.domain.access import Area
from server.domain.bulk import BulkAction
from server.domain.schedules import NOT_REPEATED
from shared.http.file_response import send_bytes
from shared.wire import Problem, StatusBody

_REF: Final = "#/components/schemas/{model}"
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Ferryman API</title>
<link rel="stylesheet" href="swagger/swagger-ui.css"></head>
<body><div id="swagger"></div>
<noscript>The same as text: <a href="openapi.json">/openapi.json</a></noscript>
<script src="swagger/swagger-ui-bundle.js"></script>
<script src="swagger/start.js"></script></body></html>
"""
_KEPT_IDS: Final = {
    "server_status_ping": "service_ping",
    "server_status_health": "service_health",
    "services_listing": "service_services",
    "agents_listing": "service_agents",
    "events_of_job": "jobs_events",
}
"""Operations whose handlers have other names by now: clients are generated from these ids."""
_ASSETS: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "start.js": "text/javascript",
    "LICENSE": "text/plain",
}


class Description:
    """The document of these routes, made when it is first asked for.

    That takes as long as everything else at the start of a server.
    """

    def __init__(self, routes: Sequence[Route], version: str) -> None:
        self._routes, self._version = routes, version

    @functools.cached_property
    def text(self) -> bytes:
        return describe(self._routes, self._version)


DESCRIPTION: Final = web.AppKey("description", Description)


async def document(request: web.Request, _: Context) -> web.StreamResponse:
    """This description."""
    description = request.app[DESCRIPTION]
    body = await asyncio.to_thread(lambda: description.text)
    return web.Response(body=body, content_type="application/json")


async def page(_: web.Request, __: Context) -> web.StreamResponse:
    """This description, for people."""
    return web.Response(
        text=_PAGE,
        content_type="text/html",
        headers={
            "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data:; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
        },
    )


async def asset(request: web.Request, _: Context) -> web.StreamResponse:
    """Files of the page."""
    name = request.match_info["file"]
    if name not in _ASSETS:
        raise Refusal(HTTPStatus.NOT_FOUND, "not_found", "no such file")
    headers = {
        "Content-Type": _ASSETS[name],
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "max-age=86400",
    }
    return await send_bytes(request, _asset(name), headers)


@functools.cache
def _asset(name: str) -> bytes:
    return resources.files("server.api").joinpath("swagger", name).read_bytes()


def describe(routes: Sequence[Route], version: str) -> bytes:
    """The OpenAPI 3.1 document, as JSON."""
    models = {
        answer
        for route in routes
        for answers in _answers(route).values()
        for answer in answers
        if isinstance(answer, type)
    }
    _, schemas = models_json_schema(
        [(model, "serialization") for model in sorted(models, key=lambda m: m.__name__)],
        ref_template=_REF,
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Ferryman", "version": version},
        # Relative to this document: right behind a proxy that shows us below a path, too.
        "servers": [{"url": "./"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return json.dumps(document).encode()


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 1} if name == "id" else {"type": "string"},
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [_parameter(name, "query", param) for name, param in route.parameters.items()]
    parameters += [_parameter(name, "header", param) for name, param in route.headers.items()]
    name = f"{route.handler.__module__.rsplit('.', 1)[-1]}_{route.handler.__name__}"
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _KEPT_IDS.get(name, name),
        "responses": {
            str(status): {"description": HTTPStatus(status).phrase} | _content(status, answers)
            for status, answers in _answers(route).items()
        },
    }
    body = route.body or _BODIES.get((route.method, route.path))
    if body is not None:
        operation["requestBody"] = _body(body)
    if route.path == "/upload":
        parameters.append(_KEY)
    if parameters:
        operation["parameters"] = parameters
    return operation


def _parameter(name: str, where: str, param: Param | str) -> dict[str, Any]:
    param = Param(param) if isinstance(param, str) else param
    more = {} if param.example is None else {"example": param.example}
    return {"name": name, "in": where, "description": param.text, "schema": param.schema} | more


def _body(body: Body) -> dict[str, Any]:
    more = {} if body.example is None else {"example": body.example}
    return {"required": True, "content": {body.media: {"schema": body.schema} | more}}


def _answers(route: Route) -> dict[int, tuple[Answer, ...]]:
    refusal = Problem if route.path.startswith("/api/") else StatusBody
    answers: dict[int, Any] = {**route.answers, **dict.fromkeys(route.refusals, refusal)}
    if route.method == "GET" and route.area is not Area.OPEN and _is_document(route.answers[200]):
        answers[HTTPStatus.NOT_MODIFIED.value] = None
    return {
        status: answer if isinstance(answer, tuple) else (answer,)
        for status, answer in answers.items()
    }


def _is_document(answer: Answer | tuple[Answer, ...]) -> bool:
    """Whether it is JSON that pollers may have already."""
    return any(
        isinstance(one, type) for one in (answer if isinstance(answer, tuple) else (answer,))
    )


def _content(status: int, answers: tuple[Answer, ...]) -> dict[str, Any]:
    if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        return {}
    return {"content": dict(map(_media, answers))}


def _media(answer: Answer) -> tuple[str, dict[str, Any]]:
    if isinstance(answer, str):
        schema = {"type": "string"} | ({} if answer.startswith("text/") else {"format": "binary"})
        return answer, {"schema": schema}
    if answer is None:
        return "application/json", {"schema": {"type": "object"}}
    media = "application/problem+json" if answer is Problem else "application/json"
    return media, {"schema": {"$ref": _REF.format(model=answer.__name__)}}


_FIELDS: Final[dict[str, tuple[str, str]]] = {
    "name": ("a name for people, at most 200 characters", "first try"),
    "tags": ("separated by commas", "batch-7,test"),
    "priority": ("-100 to 100, the higher comes first among the user's own jobs", "10"),
    "not_before": ("when it may start", "in 2h"),
    "meta": ("a JSON object that is kept with the job, up to 16 KiB", '{"sample": 7}'),
    "after": ("jobs that have to complete before it starts", "17,18"),
    "inputs_from": ("likewise; it gets their result files", "17"),
    "callback_url": ("where its end is posted", "https://portal.example.org/hooks"),
    "outputs": ("patterns of the files that its result is to have", "out/*.csv,best.pdb"),
    "result_files": ("all, or changed: without files that are as they were sent", "changed"),
    "array": ("a child for each index", "0-99"),
    "array_file": ("in place of array: a child for each line of this file", "params.txt"),
    "max_parallel": ("most children under way at once", "10"),
    "batch_policy": ("wait_all or fail_fast", "fail_fast"),
    "timeout": ("wall time of an attempt; lowers the service's", "30m"),
    "queue_timeout": ("longest wait for a start; lowers the service's", "2h"),
    "heartbeat_timeout": ("longest silence of an attempt; lowers the service's", "10m"),
    "expires_after": ("how long it is kept after its end; lowers the service's", "2d"),
    "retries": ("how often a failure is tried again", "3"),
    "retry_delays": ("before each retry; the last one repeats", "10s,1m"),
    "backoff": ("instead: constant, linear, exponential, exponential_jitter", "linear"),
    "retry_delay": ("its base", "30s"),
    "max_retry_delay": ("its longest delay", "1h"),
    "retry_on": ("reason codes and exit codes that are tried again", "timeout,exit:3"),
    "no_retry_on": ("those that are not", "memory_limit"),
    "memory": ("lowers the service's", "512MB"),
    "cpus": ("lowers the service's", "0.5"),
    "pids": ("lowers the service's", "64"),
    "disk": ("lowers the service's", "1GiB"),
}
"""Optional ones: what they mean, and an example, which is no default: forms stay empty."""
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "an upload that is repeated with the same key makes no second job",
    "schema": {"type": "string", "maxLength": 255},
    "example": "",
}
_TIMES: Final[dict[str, tuple[str, str]]] = {
    "cron": ("minute, hour, day of the month, month, day of the week", "30 2 * * MON-FRI"),
    "time_zone": ("where that time is", "Europe/Berlin"),
    "overlap": ("skip_if_running, queue or replace", "queue"),
    "missed": ("skip or run_once", "run_once"),
}
"""Of a schedule."""


def _form(needed: Sequence[str], fields: Mapping[str, tuple[str, str]]) -> Body:
    properties = {
        "user_id": {"type": "string", "example": "1", "pattern": "^[A-Za-z0-9._@-]{1,64}$"},
        "service": {"type": "string", "example": "example"},
        **{
            name: {
                "type": "string",
                "description": f"{meaning}, such as {such}",
                # Swagger's form would send "string" in a field that has none.
                "example": "",
            }
            for name, (meaning, such) in fields.items()
        },
        "file": {
            "type": "array",
            "items": {"type": "string", "format": "binary"},
            "description": "the bundle's files, run.sh among them; names may hold /",
        },
        "bundle": {
            "type": "string",
            "format": "binary",
            "description": "instead of files: one .zip, .tar or .tar.gz",
        },
    }
    required = ["user_id", "service", *needed]
    return _object("multipart/form-data", required, properties)


def _object(media: str, required: Sequence[str], properties: Mapping[str, Any]) -> Body:
    return Body(media, {"type": "object", "required": required, "properties": properties})


_BODIES: Final = {
    ("POST", "/upload"): _form(["file"], _FIELDS),
    ("POST", "/api/v1/schedules"): _form(
        ["file", "name", "cron"],
        {name: said for name, said in _FIELDS.items() if name not in NOT_REPEATED} | _TIMES,
    ),
    ("POST", "/api/v1/jobs/bulk"): _object(
        "application/json",
        ["action"],
        {
            "action": {"type": "string", "enum": list(BulkAction)},
            "ids": {"type": "array", "items": {"type": "integer"}, "maxItems": 1_000},
            "filter": {"type": "object", "example": {"user": "ada", "tag": "a"}},
            "all": {"type": "boolean"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1_000},
            "cursor": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    ),
}

ROUTES: Final = (
    Route("GET", "/openapi.json", Area.OPEN, document, {200: None}),
    Route("GET", "/swagger", Area.OPEN, page, {200: "text/html"}),
    Route("GET", "/swagger/{file}", Area.OPEN, asset, {200: None}, (404,)),
)
