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
CHILDREN: Final = "children"
"""Whether the children of batches are listed, too; otherwise a batch is one row."""
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
    def filters(self) -> dict[str, str]:
        """What is given without what shows more."""
        return {name: text for name, text in self.given.items() if name != CHILDREN}

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
        if text.strip()
        and (name == CHILDREN or (name in FILTERS and name != "top_level"))
        and not (dead_letters and name in ("dead_letter", CHILDREN))
    }
    try:
        where = job_filter(given, now)
        children = _children(given)
    except BadField as problem:
        return Chosen(given, Filter(), problem)
    where = replace(where, dead_letter=dead_letters or where.dead_letter)
    hidden = not (children or where.dead_letter or where.parent_id is not None)
    return Chosen(given, replace(where, top_level=hidden))


def _children(given: Mapping[str, str]) -> bool:
    text = given.get(CHILDREN)
    if text not in (None, "true", "1"):
        message = f"Invalid children: {text[:32]!r} is not true; leave it out to hide them"
        raise BadField(CHILDREN, "invalid_children", message)
    return text is not None


def sent_query(text: str) -> dict[str, str]:
    """The query that a form sends on, as a mapping."""
    return dict(parse_qsl(text[:_MAX_QUERY]))
