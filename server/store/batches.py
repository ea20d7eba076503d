"""Batches: parents, their children, and what is done to all children of one at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from server.domain import batch as rules
from server.domain import ending, states
from server.domain.batch import NAMED, Batch, Child, NewChild
from server.domain.jobs import FIRST_EVENT, Bundle, Job, Move, Result
from server.domain.service import Service
from server.store import bundles, jobs, records
from server.store.changes import HELD, changed, queued
from server.store.queue import DEFERRED
from server.store.records import insert, reader
from shared.clock import Micros
from shared.sql import AMONG, Tx, among
from shared.wire import JobState, Reason

_DUE: Final = f"""
    SELECT jobs.id AS id FROM jobs JOIN batches ON batches.parent_id = jobs.id
    WHERE {DEFERRED} AND (
        state = 'Queued' AND not_before = 0 AND hold IS NULL AND cancel_requested_at IS NULL
        AND service {AMONG}
        OR state = 'Running' AND (
            made = completed + failed + cancelled
            OR rest_after IS NOT NULL AND cancel_requested_at IS NULL
            OR made < total AND cancel_requested_at IS NULL AND (fail_fast = 0 OR failed = 0)
            OR (fail_fast = 1 AND failed > 0 OR cancel_requested_at IS NOT NULL) AND EXISTS (
                SELECT 1 FROM jobs AS child WHERE child.parent_id = jobs.id
                AND child.ended_at IS NULL AND child.cancel_requested_at IS NULL
            )
        )
    )
    ORDER BY jobs.id LIMIT :limit
"""  # noqa: S608 - no user input
_AT_ONCE: Final = 200
_COPIED: Final = (
    "user_id, service, tags, limits, timeout_s, submitted_by, retry, queue_timeout_s, "
    "heartbeat_timeout_s, expires_after_s, priority, outputs, result_files, meta"
)
"""What a child has from its parent."""
_CHILDREN: Final = (
    f"""
    INSERT INTO jobs (state, created_at, queued_at, message, parent_id, child_name, name,
                      array_index, bundle_folder, hold, bundle_file, bundle_size,
                      bundle_digest, inputs_from, {_COPIED})
    SELECT 'Queued', :at, :at, :message, parent.id, json_extract(child.value, '$[0]'),
           name || '[' || json_extract(child.value, '$[0]') || ']',
           json_extract(child.value, '$[1]'), json_extract(child.value, '$[2]'),
           CASE WHEN child.key < :unheld THEN NULL ELSE 'parallel' END, :file, :size, :digest,
           -- The parent of an array never runs: its children get what it was to get.
           CASE WHEN json_extract(child.value, '$[1]') IS NULL THEN '[]' ELSE inputs_from END,
           {_COPIED}
    FROM json_each(:children) AS child JOIN jobs AS parent ON parent.id = :parent
    ORDER BY child.key
    """,  # noqa: S608 - no user input
    f"""
    INSERT INTO events (job_id, at, attempt, state, message, event)
    SELECT id, :at, 0, 'Queued', :message, '{FIRST_EVENT}' FROM jobs
    WHERE parent_id = :parent AND id > :last ORDER BY id
    """,  # noqa: S608 - no user input
    """
    INSERT INTO job_tags (tag, job_id) SELECT tag, jobs.id FROM job_tags
    JOIN jobs ON jobs.parent_id = job_tags.job_id
    WHERE job_tags.job_id = :parent AND jobs.id > :last
    """,
    "UPDATE bundles SET refs = refs + :count WHERE file = :file",
)
"""The next children of a parent, their first events and tags, and the bundle that they share."""


def get(tx: Tx, parent_id: int) -> Batch | None:
    """The children of a job, as they are counted; None: it has none, and will not."""
    return several(tx, [parent_id]).get(parent_id)


def several(tx: Tx, parents: Sequence[int]) -> dict[int, Batch]:
    """Likewise, of those jobs that have some or may leave some."""
    sql = f"SELECT * FROM batches WHERE parent_id {AMONG}"  # noqa: S608 - no user input
    return {row["parent_id"]: _batch(row) for row in tx.rows(sql, among(parents))}


def due(tx: Tx, services: Collection[str], limit: int) -> list[tuple[Job, Batch]]:
    """Parents for which there is something to do: children to make or to cancel, or all of them
    have ended. ``services``: only of these may queued parents begin.
    """
    ids = [row["id"] for row in tx.rows(_DUE, {**among(services), "limit": limit})]
    parents, found = records.several(tx, ids), several(tx, ids)
    return [(parents[one], found[one]) for one in ids]


def begin(tx: Tx, parent_id: int, at: Micros) -> tuple[Job, Batch] | None:
    """Queued → Running of a parent. If it was retried by hand, the first of its children are looked
    at by :func:`queue_again`. None: it does not wait any more.
    """
    parent, batch = jobs.get(tx, parent_id), get(tx, parent_id)
    if parent.state is not JobState.QUEUED or parent.cancel_requested_at or batch is None:
        return None
    begun = jobs.move(tx, rules.begun(parent, batch, at))
    assert begun is not None, "nothing has changed since"
    sql = "UPDATE batches SET rest_after = 0 WHERE parent_id = :id AND failed + cancelled > 0"
    tx.rows(sql, {"id": parent_id})
    queue_again(tx, parent_id, at)
    return begun, several(tx, [parent_id])[parent_id]


def queue_again(tx: Tx, parent_id: int, at: Micros) -> Batch | None:
    """Begin a new run of those of the next children that have failed or were cancelled: of some
    hundreds, so that uploads get in between. How far it has come is in the batch: a crash leaves
    children to be queued, and none that failed again since is queued twice. Returns the batch as it
    is then; None: there is none to go on with.
    """
    parent, batch = jobs.get(tx, parent_id), get(tx, parent_id)
    if batch is None or batch.rest_after is None or parent.cancel_requested_at is not None:
        return None
    found = records.jobs(
        tx,
        """
        SELECT * FROM jobs WHERE parent_id = :parent AND id > :after ORDER BY id LIMIT :most
        """,
        {"parent": parent_id, "after": batch.rest_after, "most": _AT_ONCE},
    )
    for child in found:
        if child.state in states.RETRIED_BY_HAND:
            message = f"queued again with job {parent_id}"
            jobs.move(tx, ending.next_run(child, at, message))
    tx.rows(
        "UPDATE batches SET rest_after = :after WHERE parent_id = :parent",
        {"parent": parent_id, "after": found[-1].id if len(found) == _AT_ONCE else None},
    )
    changed(tx, jobs.get(tx, parent_id))
    return get(tx, parent_id)


def cancel_children(tx: Tx, parent_id: int, at: Micros) -> bool:
    """Cancel some of what has not ended, if it is to be now: queued children at once, the others
    are asked for. Of some hundreds, so that uploads get in between. False: there are no more.
    """
    batch = get(tx, parent_id)
    if batch is None or not (message := rules.why_cancelled(jobs.get(tx, parent_id), batch)):
        return False
    found = records.jobs(
        tx,
        """
        SELECT * FROM jobs WHERE parent_id = :parent AND ended_at IS NULL
        AND cancel_requested_at IS NULL ORDER BY id DESC LIMIT :most
        """,
        {"parent": parent_id, "most": _AT_ONCE},
    )
    for child in found:  # the last ones first, which others hold back: none of them is let go
        if child.state is JobState.QUEUED:
            changes = {"ended_at": at, "cancel_requested_at": at}
            jobs.move(tx, ending.move(child, JobState.CANCELLED, at, message, changes=changes))
        else:
            sql = "UPDATE jobs SET cancel_requested_at = :at WHERE id = :id RETURNING *"
            [row] = tx.rows(sql, {"at": at, "id": child.id})
            changed(tx, records.job(row))
    return bool(found)


def make_children(
    tx: Tx, batch: Batch, children: Sequence[NewChild], at: Micros, message: str
) -> Batch | None:
    """Queue the next children in one transaction, each as its parent is; the batch then. None:
    nothing was changed, because the parent does not wait for them or has made some since ``batch``
    was read.
    """
    parent_id = batch.parent_id
    counted = tx.rows(
        """
        UPDATE batches SET made = made + :count
        WHERE parent_id = :parent AND made = :made AND EXISTS (
            SELECT 1 FROM jobs WHERE id = :parent AND state = 'Running' AND deferred = 1
            AND cancel_requested_at IS NULL
        )
        RETURNING made - completed - failed - cancelled AS unended
        """,
        {"parent": parent_id, "made": batch.made, "count": len(children)},
    )
    if not counted:
        return None
    unheld = len(children)
    if batch.max_parallel:
        unheld = batch.max_parallel - (counted[0]["unended"] - len(children))
    parent, (last,) = jobs.get(tx, parent_id), tx.rows("SELECT max(id) AS id FROM jobs")
    bundle = batch.bundle or parent.bundle
    assert bundle is not None, "it has not ended"
    new = [(one.name, one.array_index, one.folder) for one in children]
    values = {
        "parent": parent_id,
        "at": at,
        "message": message,
        "last": last["id"],
        "children": json.dumps(new),
        "count": len(children),
        "unheld": unheld,
        "file": bundle.file,
        "size": bundle.size,
        "digest": bundle.digest,
    }
    for sql in _CHILDREN:
        tx.rows(sql, values)
    # Not in the document: a thousand lines of an array's file may be very long.
    made = tx.rows(
        "SELECT id FROM jobs WHERE parent_id = :parent AND id > :last ORDER BY id", values
    )
    lines = {row["id"]: one.array_line for row, one in zip(made, children, strict=True)}
    each = [{"id": id_, "line": line} for id_, line in lines.items() if line is not None]
    tx.many("UPDATE jobs SET array_line = :line WHERE id = :id", each)
    queued(tx, parent.service, parent.user_id, len(children))
    changed(tx, parent)
    return get(tx, parent_id)


def defer(tx: Tx, move: Move, total: int, bundle: Bundle) -> tuple[Job, Bundle]:
    """Make the move of a job that left children, as it is now: it waits for them from now on.
    ``bundle``: stored, with a folder for each of them. Returns the job, and the stored bundle that
    they share, which may have been there before.
    """
    parent = jobs.move(tx, move)
    assert parent is not None, "nothing has changed since"
    kept = bundles.refer_to(tx, bundle)
    assert kept is not None, "it has a file"
    values = {"parent_id": parent.id, "total": total} | records.bundle_columns(kept)
    again = ", ".join(f"{name} = :{name}" for name in values)
    insert(tx, "batches", values, f"ON CONFLICT (parent_id) DO UPDATE SET {again}")
    return parent, kept


def end(tx: Tx, parent_id: int, service: Service, at: Micros) -> Job | None:
    """What follows when all children of a parent have ended. None: they have not, or there are
    still some to make or to queue again.
    """
    parent, batch = jobs.get(tx, parent_id), get(tx, parent_id)
    if not (parent.deferred and parent.state is JobState.RUNNING and batch is not None):
        return None
    rests = batch.rest_after is not None and parent.cancel_requested_at is None
    if rests or batch.ended < batch.made:
        return None
    failed = failed_children(tx, parent_id) if batch.failed else []
    move = rules.over(parent, batch, service, at, failed)
    return None if move is None else jobs.move(tx, move)


def failed_children(tx: Tx, parent_id: int) -> list[str]:
    """The first ones that failed: their names with the reasons."""
    rows = tx.rows(
        """
        SELECT id, child_name, reason, exit_code FROM jobs
        WHERE parent_id = :parent AND state = 'Failed' ORDER BY id LIMIT :limit
        """,
        {"parent": parent_id, "limit": NAMED},
    )
    return [
        f"{row['child_name']} (job {row['id']}, {row['reason'] or 'failed'}"
        f"{'' if row['exit_code'] is None else ' ' + str(row['exit_code'])})"
        for row in rows
    ]


def active_children(tx: Tx, parents: Sequence[int]) -> Mapping[int, int]:
    """How many children of each parent hold a slot; those with none are missing."""
    # Through the index of what holds slots: those are few, whatever the batch's size.
    rows = tx.rows(
        f"""
        SELECT parent_id, count(*) AS active FROM jobs
        WHERE {HELD} AND parent_id + 0 {AMONG} GROUP BY parent_id
        """,  # noqa: S608 - no user input
        among(parents),
    )
    return {row["parent_id"]: row["active"] for row in rows}


def children_of(
    tx: Tx,
    parent_id: int,
    limit: int,
    after_id: int = 0,
    states: Collection[JobState] = tuple(JobState),
) -> list[Child]:
    """The children of a job, the first one first, those with an id above ``after_id`` that are in
    one of the states.
    """
    rows = tx.rows(
        f"""
        SELECT id, child_name AS name, state, reason FROM jobs
        WHERE parent_id = :parent AND id > :after AND state {AMONG} ORDER BY id LIMIT :limit
        """,  # noqa: S608 - no user input
        {**among(states), "parent": parent_id, "after": after_id, "limit": limit},
    )
    return [_child(row) for row in rows]


class ChildResult(NamedTuple):
    """What a child has left.

    Attributes:
        bundle, folder: of which it has those files, too, that its result refers to; None: it has
            asked for what is new only.
    """

    name: str
    result: Result | None
    bundle: Bundle | None
    folder: str


def child_results(tx: Tx, parent_id: int) -> list[ChildResult]:
    """Those of the children, in their order."""
    rows = tx.rows(
        """
        SELECT child_name, result_file, result_size, result_sha256, result_inputs,
            bundle_file, bundle_size, bundle_digest, bundle_folder, result_files
        FROM jobs
        WHERE parent_id = :parent ORDER BY id
        """,
        {"parent": parent_id},
    )
    return [
        ChildResult(
            row["child_name"],
            records.result(row),
            records.bundle(row) if row["result_files"] == "all" else None,
            row["bundle_folder"],
        )
        for row in rows
    ]


_child: Final = reader(Child, {"state": JobState, "reason": Reason})
_batch: Final = reader(
    Batch,
    {
        "ranges": lambda text: tuple(tuple(one) for one in json.loads(text)),
        "fail_fast": bool,
        "has_gather": bool,
    },
    {"bundle": records.bundle},
)
