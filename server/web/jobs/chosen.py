"""Which jobs a list shows, as its address says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, urlencode

from server.domain.errors import BadField
from server.http.filters import FILTERS, job_filter
from server.ports import Filter
from shared.clock import Micros

_SAME: Final = {"user_id": "user", "status": "state"}
"""Other names that the API has for a filter."""
_MAX_QUERY: Final = 8_192
"""Characters of a query in a form: of an address there can be no more."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The filters of a list.

    Attributes:
        given: filter -> what was typed; empty ones are left out, as forms send them.
        problem: what is wrong with one of them; ``where`` then means nothing.
    """

    given: Mapping[str, str]
    where: Filter
    problem: BadField | None = None

    @property
    def query(self) -> str:
        """As in an address."""
        return urlencode(dict(self.given))

    def with_(self, **more: str) -> dict[str, str]:
        """The filters with some others; empty: without it."""
        return {name: text for name, text in {**self.given, **more}.items() if text}


def chosen(query: Mapping[str, str], now: Micros, *, dead_letters: bool = False) -> Chosen:
    """Read the filters of an address; what is no filter is ignored."""
    given = {
        _SAME.get(name, name): text.strip()
        for name, text in query.items()
        if name in FILTERS and text.strip() and not (dead_letters and name == "dead_letter")
    }
    try:
        where = job_filter(given, now)
    except BadField as problem:
        return Chosen(given, Filter(), problem)
    return Chosen(given, replace(where, dead_letter=True) if dead_letters else where)


def sent_query(text: str) -> dict[str, str]:
    """The query that a form sends on, as a mapping."""
    return dict(parse_qsl(text[:_MAX_QUERY]))
