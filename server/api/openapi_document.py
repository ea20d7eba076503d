"""The OpenAPI document, made of the table of routes and the models of their documents."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.api.texts import CODES, TEXTS
from server.api.upload import in_query
from server.domain.access import Area, roles_of
from server.domain.webhooks import EVENTS
from server.http.params import MAX_ID, Param, word
from server.http.route import LINK_PARAMETER, TICKET_PARAMETER, Answer, Body, Route
from shared.wire import Problem, ReferenceProblem, WebhookBody, WebhookEvent, Wire

REF: Final = "#/components/schemas/{model}"


def schemas(models: Iterable[type[Wire]]) -> dict[str, Any]:
    """Name -> schema, of the models and of all that they hold."""
    wanted = sorted(set(models), key=lambda model: model.__name__)
    _, found = models_json_schema([(one, "serialization") for one in wanted], ref_template=REF)
    definitions: dict[str, Any] = found.get("$defs", {})
    for model in _all_models():
        schema = definitions.get(model.__name__)
        if schema is not None and "properties" in schema:
            said = field_texts(model)
            for name, field in schema["properties"].items():
                text = said.get(name) or TEXTS.get(name)
                if text is not None:
                    field.setdefault("description", text)
                field.pop("title", None)
    return definitions


def _all_models() -> Iterable[type[Wire]]:
    waiting = [Wire]
    while waiting:
        model = waiting.pop()
        yield model
        waiting += model.__subclasses__()


def field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text below it in the source of its model."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
            assert isinstance(tree, ast.ClassDef)
            for field, text in zip(tree.body, tree.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                    and isinstance(text.value.value, str)
                ):
                    found[field.target.id] = inspect.cleandoc(text.value.value)
    return found


_SUMMARIES: Final[dict[WebhookEvent, str]] = {
    "job.completed": "A job is Completed",
    "job.failed": "A job has failed, for good",
    "job.cancelled": "A job was cancelled",
}
_WEBHOOK_HEADERS: Final = {
    "webhook-id": "names it, the same at every try",
    "webhook-timestamp": "when it was sent, seconds since 1970",
    "webhook-signature": "v1 and the signature, as Standard Webhooks says; several by spaces",
}


def webhooks() -> dict[str, Any]:
    """A webhook for each event."""
    return {event: {"post": _webhook(event)} for event in EVENTS}


def _webhook(event: WebhookEvent) -> dict[str, Any]:
    media = {"application/json": {"schema": {"$ref": REF.format(model=WebhookBody.__name__)}}}
    return {
        "operationId": f"webhook_{event.replace('.', '_')}",
        "summary": _SUMMARIES[event],
        "description": "Posted to callback_url of the upload.",
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": True,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, text in _WEBHOOK_HEADERS.items()
        ],
        "requestBody": {"required": True, "content": media},
        "responses": {
            "2XX": {"description": "It has arrived"},
            "410": {"description": "It is not tried again"},
            "default": {"description": "It is tried again, over a day"},
        },
    }


# -- requests

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_NUMBER: Final[Mapping[str, Any]] = {"type": "integer", "minimum": 1, "maximum": MAX_ID}
# A path of 680 characters fits into the first line of a request, whichever characters they are.
PATH: Final[Mapping[tuple[str, str], Param]] = {
    ("", "id"): Param("number of the job", _NUMBER, 1),
    ("", "schedule"): Param("number of the schedule", _NUMBER, 1),
    ("agents", "name"): word("name or id of the agent", 64, _NAME, "local"),
    ("services", "name"): word("name of the service", 64, _NAME, "example"),
    ("tokens", "token"): word("id of the token", 10, "^[0-9a-z]{10}$", "0a1b2c3d4e"),
    ("jobs", "path"): word("path of the file in the result", 680, None, "data/out.txt"),
    ("server", "file"): word("a file of the page", 64, None, "start.js"),
}
"""(tag, or "" for all; name in the path) -> what it is."""
MANY: Final = {
    "Ferryman-Act-As": word(
        "of a portal: the user for whom it makes this request", 64, "^[A-Za-z0-9._@-]{1,64}$"
    )
}
"""Headers that mean something on every route that wants a token."""
REQUEST_HEADERS: Final = {
    "Range": Param("a range of bytes, such as bytes=0-99; several ranges are answered with all"),
    "If-Range": Param("the ETag for which Range is meant; another one: everything is sent"),
    "If-Match": Param("only if this is the ETag, else 412"),
    "If-None-Match": Param("only if this is not the ETag, else 304"),
    "Last-Event-ID": Param("of server-sent events: the id of the last one that was seen"),
}
SECURITY: Final = {
    TICKET_PARAMETER: {
        "type": "apiKey",
        "in": "query",
        "name": TICKET_PARAMETER,
        "description": "an upload ticket (POST /api/v1/tickets): good once, for one upload",
    },
    LINK_PARAMETER: {
        "type": "apiKey",
        "in": "query",
        "name": LINK_PARAMETER,
        "description": "what a signed link ends in (POST /api/v1/jobs/{id}/links)",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "`Authorization: Bearer TOKEN`; who may do what depends on its role",
    },
}
TAGS: Final = {
    "reference": "Routes of job-orchestrator, answered as it answers them",
    "server": "The server itself, and this description",
    "jobs": "Everything of the life of a job",
    "events": "What happened, as pages and as server-sent events",
    "schedules": "Uploads that become jobs at set times",
    "services": "Kinds of work, with their limits and quotas",
    "agents": "The compute hosts",
    "tokens": "Who has access",
    "whoami": "Who the caller is",
    "audit": "Who did what",
    "forget-user": "Removing all data of a user",
    "tickets": "Uploads by browsers without a token",
    "login-links": "Logging a browser in to the dashboard",
    "usage": "What a user has used, and what is left",
    "status": "How the server is",
    "settings": "The settings of the server",
    "webhook-secret": "The secret of webhooks' signatures",
}
_REFERENCE: Final = ("/upload", "/download", "/terminate")


def tag_of(route: Route) -> str:
    """The group that a page shows it in."""
    if route.path.startswith("/api/v1/"):
        return route.path.split("/")[3]
    return "reference" if route.path.startswith(_REFERENCE) else "server"


# -- answers

EVENT_STREAM: Final = "text/event-stream"
_TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_SECONDS: Final[Mapping[str, Any]] = {"type": "integer", "minimum": 0}


def _header(text: str, schema: Mapping[str, Any] = _TEXT, *, always: bool = False) -> Any:
    return {"description": text, "schema": schema, "required": always}


HEADERS: Final[Mapping[str, Any]] = {
    "X-Request-ID": _header("names the request in the server's log", always=True),
    "Retry-After": _header("seconds after which to ask again", _SECONDS),
    "Location": _header("where the new thing is", always=True),
    "WWW-Authenticate": _header("Bearer, and why a token is not good"),
    "Idempotent-Replayed": _header("true: this upload was there already"),
    "Accept-Encoding": _header("identity, where the body was compressed"),
    "ETag": _header("changes when the content does"),
    "Repr-Digest": _header("sha-256 of the whole content"),
    "Accept-Ranges": _header("bytes, where a part may be asked for"),
    "Content-Range": _header("which bytes these are, of how many"),
    "Content-Disposition": _header("the name under which to save it"),
    "Ferryman-Log-Attempt": _header("the attempt whose log it is"),
    "Ferryman-Log-Offset": _header("where in the log this begins", _SECONDS),
    "Ferryman-Log-Next": _header("where to go on", _SECONDS),
    "Ferryman-Log-Ended": _header("true: the attempt has ended"),
}
_FILE: Final = ("ETag", "Repr-Digest", "Accept-Ranges", "Content-Disposition")


def answer_headers(route: Route, status: int) -> list[str]:
    """The headers of an answer that say something of their own."""
    names = ["X-Request-ID"]
    if status in (202, 503):
        names.append("Retry-After")
    if status in (201, 303) and "Location" in route.sends:
        names.append("Location")
    answer = route.answers.get(status)
    if "application/zip" in (answer if isinstance(answer, tuple) else (answer,)):
        names += _FILE
    if (status == 200 and is_document(route)) or status == 304:
        names += ["ETag"] if "ETag" not in names else []
    if status == 206:
        names.append("Content-Range")
    if status < 300:
        names += [name for name in route.sends if name != "Location"]
    return names


def refused() -> dict[str, Any]:
    """Any other answer: what is in the way, with the code for it."""
    text = "The request was refused, or failed; nothing of it was done. Its code says why:"
    for status, codes in CODES.items():
        text += f"\n\n{status} {HTTPStatus(status).phrase}\n"
        text += "".join(f"\n- `{code}`: {when}" for code, when in codes.items())
    problem, reference = ({"$ref": REF.format(model=one.__name__)} for one in SHAPES)
    example = {"title": "Not Found", "status": 404, "code": "job_not_found"}
    example |= {"type": "about:blank", "detail": "there is no job 17", "request_id": "be48ddfc"}
    old = {"id": 17, "status": "Unknown", "message": "there is no job 17", "code": "job_not_found"}
    names = ("X-Request-ID", "Retry-After", "WWW-Authenticate", "Accept-Encoding", "Content-Range")
    return {
        "description": text,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        "content": {
            "application/problem+json": {"schema": problem, "example": example},
            "application/json": {"schema": reference, "example": old},
            "text/html": {"schema": {"type": "string"}},
        },
    }


SHAPES: Final = (Problem, ReferenceProblem)
"""Of refusals: below ``/api``, and of all other routes."""


def is_document(route: Route) -> bool:
    """Whether it gives JSON that a poller may have already."""
    answer = route.answers.get(200)
    answers = answer if isinstance(answer, tuple) else (answer,)
    is_json = any(isinstance(one, type) for one in answers)
    return route.method == "GET" and route.area is not Area.OPEN and is_json


def text_of_stream(media: str) -> dict[str, Any]:
    """An example of what comes in a stream."""
    if media != EVENT_STREAM:
        return {}
    event = '{"seq": 4, "at": "2026-11-20T22:42:02.514109Z", "status": "Running", …}'
    return {"example": f"id: 4\nevent: job.running\ndata: {event}\n\n: nothing new\n\n"}


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
    made = {"upload_upload": "id", "schedules_create": "schedule", "tokens_create": "token"}
    name = made.get(operation_id(route))
    if status != HTTPStatus.CREATED or name is None:
        return {}
    parameters = {name: "$response.body#/id"}
    return {
        operation_id(one): {"operationId": operation_id(one), "parameters": parameters}
        for one in routes
        if path_names(one) == [name]
    }
