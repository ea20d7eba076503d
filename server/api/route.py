"""One row of the table of routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp.typedefs import Handler
from pydantic import BaseModel

from server.domain.access import Area


@dataclass(frozen=True, slots=True)
class Route:
    """What is served at a path, and what ``/openapi.json`` says of it."""

    method: str
    path: str
    area: Area
    """Who may call it, see :mod:`server.domain.access`."""
    handler: Handler
    answers: Mapping[int, type[BaseModel] | str | None]
    """status -> the model, or the media type, of the body."""
    query: Mapping[str, str] = field(default_factory=dict)
    """parameter -> what it means"""

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0]
