"""One row of the table of pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import web

from server.domain.access import Area
from server.domain.permits import Shows
from server.http.parameter_types import Param
from server.web.site.site import Site
from shared.principals import Scope

Handler: TypeAlias = Callable[[web.Request, Site], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """What is served at a path, for people.

    Attributes:
        area: who may open it, see :mod:`server.domain.access`.
        needs: scope that the principal needs; None: what its area and its method ask for.
        query: parameter -> what it means and may be; unknown ones are ignored: people edit
            addresses, and other sites add to them.
        by_link: signed links that are good for it.
        files: its handler reads a form with files; other handlers take none, however small: each
            part of one costs as much as a hundred fields of a form without.
    """

    method: str
    path: str
    area: Area
    handler: Handler
    needs: Scope | None = None
    query: Mapping[str, Param | str] = field(default_factory=dict)
    by_link: tuple[Shows, ...] = ()
    files: bool = False
