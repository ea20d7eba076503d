"""Lists: the newest jobs that fit a filter, at a bounded cost whatever has ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from server.domain.jobs import Job
from server.store import records
from server.store.migrations import TOP
from shared.clock import Micros
from shared.http.numbers import whole_number
from shared.sql import AMONG, Row, Tx, among
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
_NEWEST: Final = "id >= :least AND id < :before ORDER BY id DESC LIMIT :limit"


def counted(which: Which, *, top_level: bool = False) -> str:
    """How many jobs of each state there are, each counted up to ``:most``."""
    parts = []
    for state in JobState:
        found = _together(which, [state], "1 = 1 LIMIT :most", top_level=top_level)
        one = f"SELECT 1 FROM ({found}) AS found LIMIT :most"  # noqa: S608 - no user input
        parts.append(f"SELECT '{state.value}' AS state, count(*) AS jobs FROM ({one}) AS counted")  # noqa: S608 - no user input
    return " UNION ALL ".join(parts)


def newest(which: Which, among: Sequence[JobState] | None, *, top_level: bool) -> str:
    """The ids of the newest ``:limit`` jobs from ``:least`` on and below ``:before``. ``among``:
    their states; None: any.
    """
    found = _together(which, among or JobState, _NEWEST, top_level=top_level)
    return f"SELECT id FROM ({found}) AS found ORDER BY id DESC LIMIT :limit"  # noqa: S608 - no user input


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
_COLUMNS: Final = (
    *("user_id", "service", "state", "submitted_by", "reason", "name", "parent_id", "schedule_id"),
    "created_at",
)
_ALONE: Final = (
    *("tag", "submitted_by", "reason", "name", "parent_id", "schedule_id", "dead_letter", "batch"),
    "after",
)
"""Choices that have an index of their own."""
_ROWS: Final = {
    "tag": ("job_id", "job_tags WHERE tag = :tag"),
    "after": ("job_id", "dependencies WHERE on_id = :after"),
    "batch": ("parent_id", "batches WHERE total > 0"),
    "dead_letter": ("id", "jobs WHERE dead_letter = 1"),
}
"""Of these, those with rows of their own: the column with the job's number, and which rows."""
_ANY: Final = (None, None, None, False)
_Bounds: TypeAlias = tuple[int, int]
"""Of the jobs' numbers: the least one, and the one below which all are."""


def page(tx: Tx, where: Filter, before_id: int | None, limit: int) -> tuple[list[Job], int | None]:
    """Newest first, those with an id below ``before_id``; and the next page's ``before_id``.

    A page may hold fewer than ``limit``, or none, and not be the last: its cost is bounded.
    """
    found, following = ids(tx, where, before_id, limit)
    jobs = records.several(tx, found)
    return [jobs[one] for one in found if one in jobs], following


def ids(tx: Tx, where: Filter, before_id: int | None, limit: int) -> tuple[list[int], int | None]:
    """The numbers of the jobs that :func:`page` gives."""
    bounds = _bounds(tx, where, _NO_END if before_id is None else before_id)
    lists = _index_lists(where)
    if len(lists) == 1 and (where.since, where.until, where.text) == (None, None, None):
        found, following = _ids(tx, lists[0], bounds, limit + 1), None
    else:
        found, following = _common(tx, where, lists, bounds, limit)
    if len(found) > limit:
        return found[:limit], found[limit - 1]
    return found, following


def counts(tx: Tx, where: Filter, most: int) -> dict[JobState, int] | None:
    """How many jobs of each state fit, whatever ``where.state`` says; counts no further than
    ``most``. None: the filter chooses by more than user, service and state, which no index counts.
    """
    given = {"user_id": where.user_id, "service": where.service}
    rest = dataclasses.replace(where, user_id=None, service=None, state=None, top_level=False)
    if rest != Filter():
        return None
    own = {name: value for name, value in given.items() if value is not None}
    which = {name: f":{name}" for name in own}
    sql = counted(which, top_level=where.top_level)
    rows = tx.rows(sql, own | {"most": most})
    return {JobState(row["state"]): row["jobs"] for row in rows}


def _bounds(tx: Tx, where: Filter, before: int) -> _Bounds:
    """The numbers between which all jobs of the time are, which keeps a page from looking
    through all that is newer.
    """
    least = 0
    if where.since is not None:
        least = _number(tx, "min(id)", "created_at >= :at", "ASC", where.since, _NO_END)
    if where.until is not None:
        newest = _number(tx, "max(id)", "created_at < :at", "DESC", where.until, -1)
        before = min(before, newest + 1)
    return least, before


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


def _ids(tx: Tx, where: Filter, bounds: _Bounds, limit: int) -> list[int]:
    """Newest first; the filter is one that an index holds."""
    least, before = bounds
    given = _columns(where)
    params = given | {"tag": where.tag, "after": where.after}
    params |= {"least": least, "before": before, "limit": limit}
    between = "{0} >= :least AND {0} < :before ORDER BY {0} DESC LIMIT :limit"
    if rows := _rows_of(where):
        ((job, fits),) = rows
        sql = f"SELECT {job} AS id FROM {fits} AND {between.format(job)}"  # noqa: S608 - no user input
    else:
        one = [name for name in given if name not in ("user_id", "service", "state")]
        if one or (where.user_id, where.service, where.states, where.top_level) == _ANY:
            fits = "".join(f"{name} = :{name} AND " for name in one)
            sql = f"SELECT id FROM jobs WHERE {fits}{between.format('id')}"  # noqa: S608 - no user input
        else:
            which = {name: f":{name}" for name in given if name != "state"}
            sql = newest(which, where.states, top_level=where.top_level)
    return [row["id"] for row in tx.rows(sql, params)]


def _common(
    tx: Tx, where: Filter, lists: list[Filter], bounds: _Bounds, limit: int
) -> tuple[list[int], int | None]:
    """Those of the next slice that fit, or as many as are more than ``limit``; where the slice
    ended.

    Of the lists, the one whose slice reaches furthest back is looked through.
    """
    slices = [_ids(tx, one, bounds, _SLICE) for one in lists]
    ids = min(slices, key=_oldest)
    following = ids[-1] if len(ids) == _SLICE else None
    found: list[int] = []
    for start in range(0, len(ids), _LOOKED_UP):
        some = ids[start : start + _LOOKED_UP]
        fitting = _fitting(tx, some, where)
        found += [one for one in some if one in fitting]
        if len(found) > limit:
            break
    return found, following


def _fitting(tx: Tx, ids: list[int], where: Filter) -> set[int]:
    """Those of the jobs that fit, each looked up by its id."""
    given, fitting = _columns(where), set[int]()
    has_text = _text_finder(where.text)
    columns = ", ".join(("id", *_COLUMNS, *(() if where.text is None else ("message", "tags"))))
    sql = f"SELECT {columns} FROM jobs WHERE id {AMONG}"  # noqa: S608
    for row in tx.rows(sql, among(ids)):
        if (
            all(row[name] == value for name, value in given.items())
            and not (where.top_level and row["parent_id"] is not None)
            and (where.states is None or row["state"] in where.states)
            and (where.since is None or row["created_at"] >= where.since)
            and (where.until is None or row["created_at"] < where.until)
            and has_text(row)
        ):
            fitting.add(row["id"])
    for job, rows in _rows_of(where):
        sql = f"SELECT {job} AS id FROM {rows} AND {job} {AMONG}"  # noqa: S608
        found = tx.rows(sql, among(fitting) | {"tag": where.tag, "after": where.after})
        fitting &= {row["id"] for row in found}
    return fitting


def _rows_of(where: Filter) -> list[tuple[str, str]]:
    """Those of :data:`_ROWS` that the filter asks for."""
    return [_ROWS[name] for name in _ROWS if getattr(where, name) != getattr(Filter(), name)]


def _index_lists(where: Filter) -> list[Filter]:
    """The filter without its times, split into filters that each have an index: at least one."""
    first = Filter(where.user_id, where.service, where.state)
    parts = [dataclasses.replace(first, among=where.among, top_level=where.top_level)]
    parts += [Filter(**{name: getattr(where, name)}) for name in _ALONE]
    return [part for part in parts if part != Filter()] or [Filter()]


def _columns(where: Filter) -> dict[str, Any]:
    """The columns of a job that have to be equal to what the filter asks for."""
    chosen = dataclasses.asdict(where)
    return {name: chosen[name] for name in _COLUMNS if chosen.get(name) is not None}


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
