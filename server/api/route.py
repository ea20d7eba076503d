"""One row of the table of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

from aiohttp import web

from server.api.context import Context
from server.domain.access import Area
from shared.principals import Scope
from shared.wire import StatusBody, Wire

Handler: TypeAlias = Callable[[web.Request, Context], Awaitable[web.StreamResponse | Wire]]


@dataclass(frozen=True, slots=True)
class Route:
    """What is served at a path, and what ``/openapi.json`` says of it."""

    method: str
    path: str
    area: Area
    """Who may call it, see :mod:`server.domain.access`."""
    handler: Handler
    answers: Mapping[int, type[Wire] | str | None]
    """status -> the model, or the media type, of the body."""
    refusals: tuple[int, ...] = ()
    """Further statuses, whose bodies are as ``problems.answer`` makes them."""
    query: Mapping[str, str] = field(default_factory=dict)
    """parameter -> what it means"""
    needs: Scope | None = None
    """Scope that a token needs; None: what its area and its method ask for."""

    @property
    def scope(self) -> Scope | None:
        """Scope that a token needs; None: none."""
        if self.needs is not None or self.area is Area.OPEN:
            return self.needs
        if self.area is Area.ADMIN:
            return Scope.ADMIN
        if self.method == "GET":
            return Scope.OPERATE if self.area is Area.AGENTS else Scope.READ
        return {Area.JOBS: Scope.MANAGE, Area.TICKETS: Scope.SUBMIT}.get(self.area, Scope.OPERATE)

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0]


def json_answer(
    body: Wire, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A document as it is sent; job-orchestrator's bodies do not show what is not set."""
    text = body.model_dump_json(exclude_none=isinstance(body, StatusBody))
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)
