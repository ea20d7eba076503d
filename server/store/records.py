"""Rows to records and back, those of jobs and attempts among them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter

from server.domain import states
from server.domain.jobs import Attempt, Bundle, Event, Hold, Job, NewJob, Result, Wanted
from server.domain.retry import RetryPolicy
from shared.sql import AMONG, Params, Row, Tx, among
from shared.wire import JobState, Limits, Progress, Reason, Usage

Record = TypeVar("Record")


def reader(
    kind: Callable[..., Record],
    read: Mapping[str, Callable[[Any], Any]],
    beside: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType({}),
) -> Callable[[Row], Record]:
    """What makes a record of a row.

    Args:
        read: field -> what the column's value means, where that is not NULL.
        beside: field that has no column of its name -> what makes it of the row.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = [one.name for one in fields if one.name not in beside]
    values_of, meanings = itemgetter(*names), [(name, read[name]) for name in names if name in read]

    def record(row: Row) -> Record:
        # Asked for one name, SQLite's row compares it with the names of all columns before.
        named = dict(zip(row.keys(), row, strict=True))
        values = dict(zip(names, values_of(named), strict=True))
        for name, means in meanings:
            if values[name] is not None:
                values[name] = means(values[name])
        for name, make in beside.items():
            values[name] = make(named)
        return kind(**values)

    return record


def insert(tx: Tx, table: str, values: Mapping[str, Any], more: str = "") -> Sequence[Row]:
    """Add a row; ``more`` stands behind the values."""
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    return tx.rows(f"INSERT INTO {table} ({names}) VALUES ({marks}) {more}", values)  # noqa: S608


# Few texts recur in most rows: each is parsed once.
_parsed: Final = lru_cache(maxsize=256)
_POLICY: Final = TypeAdapter(RetryPolicy)


@_parsed
def _tuple(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text))


@_parsed
def _mapping(text: str) -> Mapping[str, Any]:
    return MappingProxyType(json.loads(text))


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "state": JobState,
    "before": JobState,
    "reason": Reason,
    "limits": _parsed(Limits.model_validate_json),
    "usage": Usage.model_validate_json,
    "tags": _tuple,
    "outputs": _tuple,
    "warnings": _tuple,
    "upload_warnings": _tuple,
    "after": _tuple,
    "inputs_from": _tuple,
    "enforcement": _mapping,
    "output": _mapping,
    "fields": _mapping,
    "progress": Progress.model_validate_json,
    "retry": _parsed(_POLICY.validate_json),
    "hold": Hold,
    "deferred": bool,
    "gather": bool,
    "dead_letter": bool,
}
"""column -> what its text means, where there is one"""


_NONE: Final[Params] = {}


def bundle(row: Row | Mapping[str, Any]) -> Bundle | None:
    if not row["bundle_file"]:
        return None
    return Bundle(row["bundle_file"], row["bundle_size"], row["bundle_digest"])


def result(row: Row | Mapping[str, Any]) -> Result | None:
    if not row["result_file"]:
        return None
    return Result(
        row["result_file"], row["result_size"], row["result_sha256"], row["result_inputs"]
    )


event: Final = reader(Event, _READ)
attempt: Final = reader(Attempt, _READ, {"result": result})
job: Final = reader(Job, _READ, {"bundle": bundle, "result": result, "earlier_starts": lambda _: 0})


def jobs(tx: Tx, sql: str, params: Params = _NONE) -> list[Job]:
    """Those whose rows a statement gives."""
    return [job(row) for row in tx.rows(sql, params)]


def several(tx: Tx, job_ids: Iterable[int]) -> dict[int, Job]:
    """Those that are there, by their numbers."""
    sql = f"SELECT * FROM jobs WHERE id {AMONG}"  # noqa: S608 - no user input
    return {one.id: one for one in jobs(tx, sql, among(job_ids))}


_WITH_A_NEW_ONE: Final = (
    *(field.name for field in dataclasses.fields(Wanted)),
    *("user_id", "service", "limits", "timeout_s", "created_at", "submitted_by", "not_before"),
    *("schedule_id", "idempotency_key"),
)


def new_job_columns(new: NewJob) -> dict[str, Any]:
    return columns({name: getattr(new, name) for name in _WITH_A_NEW_ONE}) | {
        "state": states.FIRST,
        "deferred": int(new.batch is not None and new.batch.tasks > 0),
    }


def bundle_columns(of: Bundle) -> dict[str, Any]:
    return {"bundle_file": of.file, "bundle_size": of.size, "bundle_digest": of.digest}


def columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job as the columns that hold them."""
    values = {name: _stored(value) for name, value in changes.items() if name != "result"}
    if "result" in changes:
        result: Result | None = changes["result"]
        values["result_file"] = result and result.file
        if result is not None:
            values["result_size"], values["result_sha256"] = result.size, result.sha256
            values["result_inputs"] = result.inputs
    return values


def _stored(value: Any) -> Any:
    match value:
        case bool():
            return int(value)
        case BaseModel():
            return value.model_dump_json()
        case RetryPolicy():
            return _POLICY.dump_json(value).decode()
        case tuple() | list():
            return json.dumps(value)
        case Mapping():
            return json.dumps(dict(value))
        case _:
            return value
