"""What many routes have in common: path parameters, headers, refusals, tags."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from server.api.codes import CODES
from server.api.openapi_schemas import REF
from server.domain.access import Area
from server.http.params import MAX_ID, Param, word
from server.http.route import LINK_PARAMETER, TICKET_PARAMETER, Route
from shared.wire import Problem, ReferenceProblem

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
    ),
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
