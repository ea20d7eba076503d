"""The OpenAPI document, made of the table of routes and the models of their documents."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from server.api.openapi_parts import (
    EVENT_STREAM,
    HEADERS,
    MANY,
    PATH,
    REQUEST_HEADERS,
    SECURITY,
    SHAPES,
    TAGS,
    answer_headers,
    is_document,
    refused,
    tag_of,
    text_of_stream,
)
from server.api.openapi_schemas import REF, field_texts, schemas
from server.api.openapi_webhooks import webhooks
from server.api.upload import in_query
from server.domain.access import Area, roles_of
from server.http.params import Param
from server.http.route import LINK_PARAMETER, TICKET_PARAMETER, Answer, Body, Route
from shared.wire import WebhookBody, Wire

_KEPT_IDS: Final = {
    "server_status_ping": "service_ping",
    "server_status_health": "service_health",
    "services_listing": "service_services",
    "agents_listing": "service_agents",
    "events_of_job": "jobs_events",
}
"""Operations whose handlers have other names by now: clients are generated from these ids."""
_ABOUT: Final = """Every answer has `X-Request-ID`. Routes below `/api/v1` answer errors as
`application/problem+json` (RFC 9457), the others in job-orchestrator's shape, which is also that of
`bad_request`, for what is no valid HTTP; both have a `code`.
Every `GET` may be a `HEAD`, which is answered without the body. Times are RFC 3339 in UTC,
durations seconds, sizes bytes. Unknown fields may appear; ignore them."""


def describe(routes: Sequence[Route], version: str, *, tokens: bool = False) -> bytes:
    """The OpenAPI 3.1 document, as JSON.

    Args:
        tokens: whether a token is needed; without, the server listens on loopback only.
    """
    models = {
        answer
        for route in routes
        for answers in _answers(route).values()
        for answer in answers
        if isinstance(answer, type)
    }
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(openapi_path(route.path), {})[route.method.lower()] = _operation(
            route, routes, tokens
        )
    used = {tag_of(route) for route in routes}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Ferryman",
            "version": version,
            "summary": "Carries bundles of files to compute hosts and brings the results back",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Relative to this document: right behind a proxy that shows us below a path, too.
        "servers": [{"url": "./"}],
        "tags": [
            {"name": name, "description": text} for name, text in TAGS.items() if name in used
        ],
        "paths": paths,
        "webhooks": webhooks(),
        "components": {
            "schemas": schemas({*models, *SHAPES, WebhookBody}),
            "securitySchemes": SECURITY,
            "headers": HEADERS,
            "responses": {"Refused": refused()},
            "parameters": {name: _parameter(name, "header", one) for name, one in MANY.items()},
        },
    }
    return json.dumps(document, ensure_ascii=False).encode()


def openapi_path(path: str) -> str:
    """A path without the patterns of its parameters: ``{path:.+}`` is ``{path}``."""
    return re.sub(r"{(\w+):[^{}]*}", r"{\1}", path)


def operation_id(route: Route) -> str:
    """The name of a route for generated clients."""
    name = f"{route.handler.__module__.rsplit('.', 1)[-1]}_{route.handler.__name__}"
    return _KEPT_IDS.get(name, name)


def path_names(route: Route) -> list[str]:
    """The parameters of its path."""
    return re.findall(r"{(\w+)}", openapi_path(route.path))


def _operation(route: Route, routes: Sequence[Route], tokens: bool) -> dict[str, Any]:
    parameters = [
        _parameter(name, "path", PATH.get((tag_of(route), name)) or PATH["", name])
        for name in path_names(route)
    ]
    parameters += [_parameter(name, "query", param) for name, param in route.query.items()]
    headers = {name: REQUEST_HEADERS[name] for name in _header_names(route)} | dict(route.headers)
    parameters += [_parameter(name, "header", param) for name, param in headers.items()]
    if route.fields_in_query and route.body is not None:
        parameters.append(in_query(route.body))
    if route.area is not Area.OPEN:
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in MANY]
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary.removesuffix("."),
        "description": _about(route),
        "tags": [tag_of(route)],
        "security": _security(route, tokens),
        "responses": {
            str(status): _response(route, status, answers, routes)
            for status, answers in sorted(_answers(route).items())
        }
        | {"default": {"$ref": "#/components/responses/Refused"}},
    }
    if route.body is not None:
        operation["requestBody"] = _body(route.body)
    if parameters:
        operation["parameters"] = parameters
    return operation


def _header_names(route: Route) -> list[str]:
    names = []
    if any(status in route.answers for status in (206, 304)):
        names += ["Range", "If-Range", "If-Match", "If-None-Match"]
    elif is_document(route):
        names.append("If-None-Match")
    if any(isinstance(one, tuple) and EVENT_STREAM in one for one in route.answers.values()):
        names.append("Last-Event-ID")
    return names


def _about(route: Route) -> str:
    lines = (route.handler.__doc__ or "").strip().splitlines()
    about = "\n".join(line.strip() for line in lines[1:]).strip()
    if route.area is Area.OPEN:
        who = "For everybody, with or without a token."
    else:
        who = f"For the roles {', '.join(roles_of(route.area))}"
        who += "." if route.scope is None else f", with the scope {route.scope}."
    return f"{about}\n\n{who}".strip()


def _security(route: Route, tokens: bool) -> list[dict[str, list[str]]]:
    if route.area is Area.OPEN:
        return []
    ways: list[dict[str, list[str]]] = ([] if tokens else [{}]) + [{"token": []}]
    ways += [{TICKET_PARAMETER: []}] if route.by_ticket else []
    return ways + ([{LINK_PARAMETER: []}] if route.by_link else [])


def _parameter(name: str, where: str, param: Param | str) -> dict[str, Any]:
    param = Param(param) if isinstance(param, str) else param
    more: dict[str, Any] = {} if param.example is None else {"example": param.example}
    schema = param.schema
    if where == "path":
        more["required"] = True
    elif more.get("example"):
        # Not where Swagger's page would fill it in, and so send what nobody asked for.
        schema = {**schema, "examples": [more.pop("example")]}
    return {"name": name, "in": where, "description": param.text, "schema": schema} | more


def _body(body: Body) -> dict[str, Any]:
    more = {} if body.example is None else {"example": body.example}
    schema = dict(body.schema)
    if body.model is not None:
        said = field_texts(body.model)
        schema["properties"] = {
            name: {"description": said.get(name, ""), **field}
            for name, field in schema["properties"].items()
        }
    return {"required": True, "content": {body.media: {"schema": schema} | more}}


# -- answers


def _answers(route: Route) -> dict[int, tuple[Answer, ...]]:
    answers: dict[int, tuple[Answer, ...]] = {
        status: one if isinstance(one, tuple) else (one,) for status, one in route.answers.items()
    }
    if is_document(route):
        answers.setdefault(HTTPStatus.NOT_MODIFIED.value, (None,))
    return answers


def _response(
    route: Route, status: int, answers: tuple[Answer, ...], routes: Sequence[Route]
) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "headers": {
            name: {"$ref": f"#/components/headers/{name}"} for name in answer_headers(route, status)
        },
    }
    content = dict(_media(one) for one in answers if one is not None)
    if content:
        response["content"] = content
    if links := _links(route, status, routes):
        response["links"] = links
    return response


def _media(answer: type[Wire] | str) -> tuple[str, Any]:
    if isinstance(answer, str):
        if answer.startswith("text/"):
            return answer, {"schema": {"type": "string"}} | text_of_stream(answer)
        return answer, {"schema": {"type": "string", "format": "binary"}}
    return "application/json", {"schema": {"$ref": REF.format(model=answer.__name__)}}


def _links(route: Route, status: int, routes: Sequence[Route]) -> dict[str, Any]:
    """What can be done with what was made: with the job of an upload, with a schedule."""
    made = {
        "upload_upload": "id",
        "schedules_create": "schedule",
        "tokens_create": "token",
    }
    name = made.get(operation_id(route))
    if status != HTTPStatus.CREATED or name is None:
        return {}
    parameters = {name: "$response.body#/id"}
    return {
        operation_id(one): {"operationId": operation_id(one), "parameters": parameters}
        for one in routes
        if path_names(one) == [name]
    }
