"""Query parameters that several routes have, as ``/openapi.json`` describes them."""

from __future__ import annotations

from typing import Final

from server.http.filters import MAX_TEXT
from server.http.parameter_types import MAX_ID, Param, choice, seconds, whole, word
from shared.wire import JobState, Reason

_STATES: Final = (*JobState, "Killed")
"""The last one is what job-orchestrator calls Cancelled."""
_MOMENT: Final = "a time with its offset from UTC, or how long ago, as in 2h"

WAIT: Final = {"wait": seconds("hold the request until the job has ended, at most so many seconds")}
CURSOR: Final = whole("where the page begins: what the page before gave as next", 0, MAX_ID)


def paging(default: int, most: int) -> dict[str, Param]:
    """Of a list."""
    return {"limit": whole("items of a page", 1, most, default), "cursor": CURSOR}


USER: Final = word("only of this user", MAX_TEXT)
SERVICE: Final = word("only of this service", MAX_TEXT)
FILTERS: Final = {
    "user": USER,
    "service": SERVICE,
    "state": choice("only in this state", _STATES),
    "tag": word("only with this tag", MAX_TEXT),
    "name": word("only with this name", MAX_TEXT),
    "text": word("only with this number, or with this in the name, a tag or the message", MAX_TEXT),
    "reason": choice("only failed for this reason", Reason),
    "dead_letter": choice("only dead letters", ("true", "1")),
    "top_level": choice("only jobs without a parent: no children of batches", ("true", "1")),
    "batch": choice("only parents of batches: jobs with children", ("true", "1")),
    "since": Param(f"only uploaded then or later: {_MOMENT}", example="2h"),
    "until": Param(f"only uploaded before: {_MOMENT}", example="2h"),
    "parent": whole("only children of this job"),
    "schedule": whole("only made by this schedule"),
}
"""Of lists of jobs; :mod:`server.http.filters` reads them."""
