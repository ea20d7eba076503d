"""Lists: the newest jobs that fit a filter, at a bounded cost whatever has ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from server.domain.jobs import Job
from server.store import records
from server.store.migrations import TOP
from shared.clock import Micros
from shared.http.numbers import whole_number
from shared.sql import AMONG, Params, Row, Tx, among
from shared.wire import JobState, Reason


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs a list shows; None: any."""

    user_id: str | None = None
    service: str | None = None
    state: JobState | None = None
    tag: str | None = None
    submitted_by: str | None = None
    reason: Reason | None = None
    name: str | None = None
    parent_id: int | None = None
    schedule_id: int | None = None
    after: int | None = None
    """That begin after this job, or take its files."""
    dead_letter: bool = False
    """Only dead letters."""
    since: Micros | None = None
    """Uploaded then or later."""
    until: Micros | None = None
    """Uploaded before."""
    among: tuple[JobState, ...] | None = None
    """In one of these states."""
    text: str | None = None
    """With this number, or with this text in the name, a tag or the message, in any case of
    letters."""
    top_level: bool = False
    """Only jobs without a parent: a batch is one job of the list."""
    batch: bool = False
    """Only jobs with children."""

    @property
    def states(self) -> tuple[JobState, ...] | None:
        """Those that ``state`` or ``among`` allows; None: any."""
        return self.among if self.state is None else (self.state,)


Which: TypeAlias = Mapping[str, str]
"""Columns of a job, user or service, and what each is equal to."""


def counted(which: Which, *, top_level: bool = False) -> str:
    """How many jobs of each state there are, each counted up to ``:most``."""
    parts = []
    for state in JobState:
        found = _together(which, [state], "1 = 1 LIMIT :most", top_level=top_level)
        one = f"SELECT 1 FROM ({found}) AS found LIMIT :most"  # noqa: S608 - no user input
        parts.append(f"SELECT '{state.value}' AS state, count(*) AS jobs FROM ({one}) AS counted")  # noqa: S608 - no user input
    return " UNION ALL ".join(parts)


def _together(which: Which, among: Iterable[JobState], end: str, *, top_level: bool = False) -> str:
    fits = "".join(f"{name} = {value} AND " for name, value in which.items())
    return " UNION ALL ".join(
        f"SELECT * FROM (SELECT id FROM jobs WHERE {fits}{TOP} = {top} "  # noqa: S608 - no user input
        f"AND state = '{state.value}' AND {end}) AS part"
        for state in among
        for top in ((1,) if top_level else (1, 0))
    )


_SLICE: Final = 500
"""Jobs that one page looks at, where choices have to be compared that no index holds together."""
_LOOKED_UP: Final = 100
"""Of these, so many at a time: most pages are full before all have been."""
_NO_END: Final = 2**63 - 1
_OUT_OF_ORDER: Final = 1_000
"""Jobs whose numbers may be out of the order of their times: as many as may be uploaded at once."""
_ANY: Final = Filter()
_ALONE: Final = {
    "tag": ("job_id", "job_tags WHERE tag = :tag"),
    "submitted_by": ("id", "jobs WHERE submitted_by = :submitted_by"),
    "reason": ("id", "jobs WHERE reason = :reason"),
    "name": ("id", "jobs WHERE name = :name"),
    "parent_id": ("id", "jobs WHERE parent_id = :parent_id"),
    "schedule_id": ("id", "jobs WHERE schedule_id = :schedule_id"),
    "dead_letter": ("id", "jobs WHERE dead_letter = 1"),
    "batch": ("parent_id", "batches WHERE total > 0"),
    "after": ("job_id", "dependencies WHERE on_id = :after"),
}
"""Choices that have an index of their own: the column with the job's number, and which rows."""
_COMPARED: Final = f"""
    SELECT id, user_id, service, state, parent_id, created_at, name, message, tags FROM jobs
    WHERE id {AMONG}
"""  # noqa: S608 - no user input
_NEWEST: Final = "{0} >= :least AND {0} < :before ORDER BY {0} DESC LIMIT :limit"


def page(tx: Tx, where: Filter, before_id: int | None, limit: int) -> tuple[list[Job], int | None]:
    """Newest first, those with an id below ``before_id``; and the next page's ``before_id``.

    A page may hold fewer than ``limit``, or none, and not be the last: its cost is bounded.
    """
    found, following = ids(tx, where, before_id, limit)
    jobs = records.several(tx, found)
    return [jobs[one] for one in found if one in jobs], following


def ids(tx: Tx, where: Filter, before_id: int | None, limit: int) -> tuple[list[int], int | None]:
    """The numbers of the jobs that :func:`page` gives."""
    params = dataclasses.asdict(where) | _bounds(tx, where, before_id)
    lists, following = _lists(where), None
    if len(lists) == 1 and (where.since, where.until, where.text) == (None, None, None):
        found = _ids(tx, lists[0], params, limit + 1)
    else:
        found, following = _common(tx, where, lists, params, limit)
    if len(found) > limit:
        return found[:limit], found[limit - 1]
    return found, following


def counts(tx: Tx, where: Filter, most: int) -> dict[JobState, int] | None:
    """How many jobs of each state fit, whatever ``where.state`` says; counts no further than
    ``most``. None: the filter chooses by more than user, service and state, which no index counts.
    """
    rest = dataclasses.replace(where, user_id=None, service=None, state=None, top_level=False)
    if rest != _ANY:
        return None
    sql = counted(_whose(where), top_level=where.top_level)
    rows = tx.rows(sql, dataclasses.asdict(where) | {"most": most})
    return {JobState(row["state"]): row["jobs"] for row in rows}


def _whose(where: Filter) -> Which:
    return {one: f":{one}" for one in ("user_id", "service") if getattr(where, one) is not None}


def _bounds(tx: Tx, where: Filter, before_id: int | None) -> dict[str, int]:
    """The numbers between which all jobs of the time are, which keeps a page from looking
    through all that is newer: the least one, and the one below which all are.
    """
    least, before = 0, _NO_END if before_id is None else before_id
    if where.since is not None:
        least = _number(tx, "min(id)", "created_at >= :at", "ASC", where.since, _NO_END)
    if where.until is not None:
        newest = _number(tx, "max(id)", "created_at < :at", "DESC", where.until, -1)
        before = min(before, newest + 1)
    return {"least": least, "before": before}


def _number(tx: Tx, which: str, fits: str, order: str, at: Micros, default: int) -> int:
    rows = tx.rows(
        f"""
        SELECT {which} AS id FROM (
            SELECT id FROM jobs WHERE {fits} ORDER BY created_at {order}, id {order}
            LIMIT {_OUT_OF_ORDER}
        ) AS nearest
        """,  # noqa: S608 - no user input
        {"at": at},
    )
    return default if rows[0]["id"] is None else int(rows[0]["id"])


def _lists(where: Filter) -> list[str]:
    """For each choice, without the times, the statement that finds its newest jobs through an
    index: at least one.
    """
    found = []
    whose, among, top = _whose(where), where.states, where.top_level
    if whose or among is not None or top:
        parts = _together(whose, among or JobState, _NEWEST.format("id"), top_level=top)
        found.append(f"SELECT id FROM ({parts}) AS found ORDER BY id DESC LIMIT :limit")  # noqa: S608 - no user input
    found += [
        f"SELECT {job} AS id FROM {rows} AND {_NEWEST.format(job)}"  # noqa: S608 - no user input
        for job, rows in _chosen(where)
    ]
    return found or [f"SELECT id FROM jobs WHERE {_NEWEST.format('id')}"]  # noqa: S608


def _chosen(where: Filter) -> list[tuple[str, str]]:
    """Those of :data:`_ALONE` that the filter asks for."""
    return [_ALONE[name] for name in _ALONE if getattr(where, name) != getattr(_ANY, name)]


def _ids(tx: Tx, sql: str, params: Params, limit: int) -> list[int]:
    return [row["id"] for row in tx.rows(sql, {**params, "limit": limit})]


def _common(
    tx: Tx, where: Filter, lists: list[str], params: Params, limit: int
) -> tuple[list[int], int | None]:
    """Those of the next slice that fit, or as many as are more than ``limit``; where the slice
    ended.

    Of the lists, the one whose slice reaches furthest back is looked through.
    """
    slices = [_ids(tx, one, params, _SLICE) for one in lists]
    ids = min(slices, key=_oldest)
    following = ids[-1] if len(ids) == _SLICE else None
    found: list[int] = []
    for start in range(0, len(ids), _LOOKED_UP):
        some = ids[start : start + _LOOKED_UP]
        fitting = _fitting(tx, some, where, params)
        found += [one for one in some if one in fitting]
        if len(found) > limit:
            break
    return found, following


def _fitting(tx: Tx, ids: list[int], where: Filter, params: Params) -> set[int]:
    """Those of the jobs that fit, each looked up by its id."""
    has_text, fitting = _text_finder(where.text), set[int]()
    for row in tx.rows(_COMPARED, among(ids)):
        if (
            where.user_id in (None, row["user_id"])
            and where.service in (None, row["service"])
            and not (where.top_level and row["parent_id"] is not None)
            and (where.states is None or row["state"] in where.states)
            and (where.since is None or row["created_at"] >= where.since)
            and (where.until is None or row["created_at"] < where.until)
            and has_text(row)
        ):
            fitting.add(row["id"])
    for job, rows in _chosen(where):
        sql = f"SELECT {job} AS id FROM {rows} AND {job} {AMONG}"  # noqa: S608
        fitting &= {row["id"] for row in tx.rows(sql, {**params, **among(fitting)})}
    return fitting


def _text_finder(text: str | None) -> Callable[[Row], bool]:
    """What finds the text in a row, in any case of letters. Databases differ in what they take for
    the same letter, so it is not left to them.
    """
    if text is None:
        return lambda _: True
    wanted, number = text.casefold(), whole_number(text)

    def found(row: Row) -> bool:
        return (
            row["id"] == number
            or wanted in row["message"].casefold()
            or (row["name"] is not None and wanted in row["name"].casefold())
            or any(wanted in tag.casefold() for tag in json.loads(row["tags"]))
        )

    return found


def _oldest(ids: list[int]) -> int:
    """The oldest job that a slice says everything about."""
    return ids[-1] if len(ids) == _SLICE else 0
