"""A row of the table of routes, the paths that several have, and answers that are known already."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from aiohttp import hdrs, web
from pydantic import BaseModel

from server.domain.access import Area, scope_of
from server.domain.errors import BadField
from server.domain.field_values import hint
from server.domain.permits import Shows
from server.http.context import Context
from server.http.params import Param
from shared.principals import Scope
from shared.wire import StatusBody, Wire

JOB: Final = "/api/v1/jobs/{id}"
JOB_PAGE: Final = "/jobs/{id}"
AGENT: Final = "/api/v1/agents/{name}"
SERVICES: Final = "/api/v1/services"
TOKENS: Final = "/api/v1/tokens"
TOKEN: Final = f"{TOKENS}/{{token}}"
SERVICE: Final = f"{SERVICES}/{{name}}"
LOGIN_ONCE: Final = "/login/once"
"""Page of a link that logs in."""
TOKENS_PAGE: Final = "/tokens"
TOKEN_PAGE: Final = f"{TOKENS_PAGE}/{{token}}"


TICKET_PARAMETER: Final = "ticket"
LINK_PARAMETER: Final = "link"
_BY_TICKET: Final = {TICKET_PARAMETER: Param("an upload ticket, in place of a token")}
_BY_LINK: Final = {LINK_PARAMETER: Param("what a signed link ends in, in place of a token")}

Handler: TypeAlias = Callable[[web.Request, Context], Awaitable[web.StreamResponse | Wire]]
Answer: TypeAlias = type[Wire] | str | None
"""Of a body: the model, or the media type; None: there is none."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body that a route takes.

    Attributes:
        schema: JSON schema of the whole.
        example: one that the server takes as it is.
        model: whose source says what its fields mean; None: the schema does.
    """

    media: str
    schema: Mapping[str, Any]
    example: Any = None
    model: type[BaseModel] | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """What is served at a path, and what ``/openapi.json`` says of it."""

    method: str
    path: str
    area: Area
    """Who may call it, see :mod:`server.domain.access`."""
    handler: Handler
    answers: Mapping[int, Answer | tuple[Answer, ...]]
    """status -> the body, or the bodies that it may have."""
    query: Mapping[str, Param | str] = field(default_factory=dict)
    """parameter -> what it means and may be; any other one is refused. A text: any text will do."""
    needs: Scope | None = None
    """Scope that a token needs; None: what its area and its method ask for."""
    body: Body | None = None
    headers: Mapping[str, Param] = field(default_factory=dict)
    """Headers of the request that mean something here, beside those that do everywhere."""
    sends: tuple[str, ...] = ()
    """Headers of its answers, beside those of every answer."""
    fields_in_query: bool = False
    """The fields of its form may stand in the query, and are checked there as in the form."""
    by_ticket: bool = False
    """An upload ticket is good for it."""
    by_link: tuple[Shows, ...] = ()
    """Signed links that are good for it, to the job whose ``id`` is in the path."""

    @property
    def parameters(self) -> Mapping[str, Param | str]:
        """All of the query."""
        by_permit = (_BY_TICKET if self.by_ticket else {}) | (_BY_LINK if self.by_link else {})
        return {**self.query, **by_permit} if by_permit else self.query

    @property
    def scope(self) -> Scope | None:
        """Scope that a token needs; None: none."""
        return self.needs or scope_of(self.area, self.method)

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0]

    def check_query(self, request: web.Request) -> None:
        """Refuse a parameter that means nothing here, is there twice, or is too long. Raises
        BadField.
        """
        for name, text in request.query.items():
            if len(request.query.getall(name)) > 1:
                message = f"the parameter {name[:32]!r} is there twice; give it once"
                raise BadField(name[:32], "repeated_parameter", message)
            if name not in self.parameters and not self.fields_in_query:
                message = f"no parameter {name[:32]!r} here; {hint(name, self.parameters)}"
                raise BadField(name[:32], "unknown_parameter", message)
            param = self.query.get(name)
            most = param.schema.get("maxLength") if isinstance(param, Param) else None
            if most is not None and len(text) > most:
                message = f"{name} should have at most {most} characters, not {len(text)}"
                raise BadField(name, f"invalid_{name}", message)


def json_answer(
    body: Wire, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A document as it is sent; job-orchestrator's bodies do not show what is not set."""
    text = body.model_dump_json(exclude_none=isinstance(body, StatusBody))
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


_KEPT: Final = (hdrs.ETAG, hdrs.CACHE_CONTROL, hdrs.RETRY_AFTER)


def tag_of(content: bytes) -> str:
    """The entity tag of a document; weak, since it is of what it says and not of its bytes."""
    return f'W/"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def conditional(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """The answer to a GET, with an entity tag where it is a JSON document; 304 if the caller has
    named that in ``If-None-Match``.
    """
    if (
        request.method not in (hdrs.METH_GET, hdrs.METH_HEAD)
        or not isinstance(answer, web.Response)
        or answer.status != HTTPStatus.OK
        or answer.content_type != "application/json"
        or hdrs.CACHE_CONTROL in answer.headers  # not to be stored, or with rules of its own
        or not isinstance(answer.body, bytes)
    ):
        return answer
    tag = answer.headers.setdefault(hdrs.ETAG, tag_of(answer.body))
    answer.headers[hdrs.CACHE_CONTROL] = "private, no-cache"
    if not _names(request.headers.getall(hdrs.IF_NONE_MATCH, []), tag):
        return answer
    kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=kept)


def _names(headers: list[str], tag: str) -> bool:
    """Whether the tag is one of those in ``If-None-Match``, strong or weak."""
    tags = [one.strip() for header in headers for one in header.split(",")]
    return "*" in tags or tag.removeprefix("W/") in (one.removeprefix("W/") for one in tags)
