"""The queue: who waits, for how long, and whose turn it is. Users' turns and free slots are counted
in the transaction that claims the jobs.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from server.domain import choose
from server.domain.choose import Candidate, Waiting
from server.domain.jobs import ROW_BYTES, Job, Move
from server.domain.service import Service
from server.store import bundles, changes, jobs, records
from server.store.changes import HELD, WAITS_SINCE
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.sql import AMONG, Row, Tx, among
from shared.wire import JobState

READY: Final = "state = 'Queued' AND not_before = 0 AND hold IS NULL AND deferred = 0"
"""What may be claimed now, in the words of the index ``jobs_queued``."""
DEFERRED: Final = "deferred = 1 AND state IN ('Queued', 'Running')"
"""Parents that wait for their children, or to have them made, in the words of ``jobs_deferred``."""
_AT_ONCE: Final = 1_000
_DEADLINE: Final = f"({WAITS_SINCE} + queue_timeout_s * 1000000.0)"
"""As the index ``jobs_by_deadline`` has it."""
_NEXT_USER: Final = f"""
    SELECT user_id FROM jobs WHERE {READY} AND service = :service
    AND user_id > {{after}} {{bound}} ORDER BY user_id LIMIT 1
"""  # noqa: S608 - no user input
_RETIRED: Final = """
    SELECT name FROM agents GROUP BY name
    HAVING sum(CASE state WHEN 'active' THEN 1 ELSE 0 END) = 0
"""
"""Agents that an operator has drained, retired or declared lost, perhaps after the candidates were
listed. An agent that replaced a retired one has the same name."""


def count_queued(tx: Tx, service: str, user_id: str) -> int:
    """Jobs of the user that wait, delayed ones too, and children that are still to be made; in a
    transaction that writes.
    """
    return changes.all_of(tx).queued[service, user_id] + unmade(tx, user_id)[service]


def unmade(tx: Tx, user_id: str) -> Counter[str]:
    """Service -> children of the user's that are still to be made."""
    rows = tx.rows(
        f"""
        SELECT service, sum(total - made) AS count
        FROM jobs JOIN batches ON batches.parent_id = jobs.id
        WHERE {DEFERRED} AND user_id = :user_id GROUP BY service
        """,  # noqa: S608 - no user input
        {"user_id": user_id},
    )
    return Counter({row["service"]: row["count"] for row in rows})


def waits_since(tx: Tx, services: Collection[str]) -> dict[str, Micros]:
    """Service -> since when the queued job waits that waits longest, children that are held back
    left out; those that have none are missing.
    """
    since = f"""
        SELECT {WAITS_SINCE} AS since FROM jobs
        WHERE state = 'Queued' AND hold IS NULL AND service = :service
        ORDER BY {WAITS_SINCE} LIMIT 1
    """  # noqa: S608 - no user input
    rows = {service: tx.rows(since, {"service": service}) for service in services}
    return {service: found[0]["since"] for service, found in rows.items() if found}


def next_due(tx: Tx) -> Micros | None:
    """When the first of the delayed jobs may be sent."""
    first = "SELECT min(not_before) AS at FROM jobs WHERE state = 'Queued' AND not_before > 0"
    at = tx.rows(first)[0]["at"]
    return None if at is None else int(at)


def release_delayed(tx: Tx, now: Micros) -> int:
    """Let the jobs be sent whose delay is over; how many, some hundreds at a time.

    Until then :func:`claim` does not see them, and they cost it nothing.
    """
    sql = """
        UPDATE jobs SET not_before = 0 WHERE id IN (
            SELECT id FROM jobs WHERE state = 'Queued' AND not_before > 0 AND not_before <= :now
            LIMIT :most
        ) RETURNING id
    """
    return len(tx.rows(sql, {"now": now, "most": _AT_ONCE}))


def release_ahead(tx: Tx, now: Micros) -> None:
    """At a start: let the jobs be sent that wait for a time which means nothing by now, because
    they were queued again by a clock that was ahead of this one, as that of a former server. A job
    that was not sent before has the time that its upload named.
    """
    sql = """
        UPDATE jobs SET not_before = 0
        WHERE state = 'Queued' AND not_before > 0 AND queued_at > :now AND attempt > 0
    """
    tx.rows(sql, {"now": now})


def oldest_held(tx: Tx, agents: Sequence[str], most: int) -> dict[str, list[Job]]:
    # The numbers alone are in the index of what is held: few rows are read, however many there are.
    sql = f"""
        SELECT * FROM jobs WHERE id IN (
            SELECT id FROM jobs WHERE {HELD} AND agent = :agent ORDER BY id + 0 LIMIT :most
        ) ORDER BY id
    """  # noqa: S608 - no user input
    return {name: records.jobs(tx, sql, {"agent": name, "most": most}) for name in agents}


def queued_before(tx: Tx, ids: Sequence[int], most: int) -> dict[int, int]:
    """For each of the jobs: how many of its user's jobs of its service may be sent before it;
    counts no further than ``most``.
    """
    rows = tx.rows(
        f"""
        SELECT waiting.id AS id, (
            SELECT count(*) FROM (
                SELECT 1 FROM jobs WHERE {READY} AND service = waiting.service
                AND user_id = waiting.user_id AND priority > waiting.priority
                UNION ALL
                SELECT 1 FROM jobs WHERE {READY} AND service = waiting.service
                AND user_id = waiting.user_id AND priority = waiting.priority
                AND id < waiting.id
                LIMIT :most
            )
        ) AS count
        FROM jobs AS waiting WHERE waiting.id {AMONG}
        """,  # noqa: S608 - no user input
        among(ids) | {"most": most},
    )
    return {row["id"]: row["count"] for row in rows}


def overdue(
    tx: Tx, service: str, waiting_since: Micros | None, now: Micros, limit: int
) -> list[Job]:
    """Queued jobs whose queue timeout is over, and that nothing holds back.

    Args:
        waiting_since: those that have waited since then; None: only those with a queue timeout
            of their own.
        limit: of both kinds.
    """
    params = {"service": service, "before": waiting_since, "now": now, "limit": limit}
    found: list[Job] = []
    for only_if, by in (
        (f"{WAITS_SINCE} <= :before", WAITS_SINCE),
        (f"queue_timeout_s > 0 AND {_DEADLINE} <= :now", _DEADLINE),
    ):
        found += records.jobs(
            tx,
            f"""
            SELECT * FROM jobs WHERE state = 'Queued' AND hold IS NULL AND service = :service
            AND {only_if} ORDER BY {by} LIMIT :limit
            """,  # noqa: S608 - no user input
            params,
        )
    return list({job.id: job for job in found}.values())[:limit]


def of_service(tx: Tx, service: str, limit: int) -> list[Job]:
    """Queued jobs, whatever holds them back."""
    sql = "SELECT * FROM jobs WHERE state = 'Queued' AND service = :service LIMIT :limit"
    return records.jobs(tx, sql, {"service": service, "limit": limit})


class Offer(NamedTuple):
    """A service, and the agents that take jobs of it now."""

    service: Service
    candidates: Sequence[Candidate]


class Claimed(NamedTuple):
    """Attributes:
    jobs: each at the beginning of its next attempt.
    next_due: when the first of the delayed jobs may be claimed.
    """

    jobs: list[Job]
    next_due: Micros | None


def claim(
    tx: Tx,
    offers: Sequence[Offer],
    most: int,
    at: Micros,
    ended: Mapping[AttemptKey, str],
    services: Mapping[str, Service],
) -> Claimed:
    """Let delayed jobs come due, and claim jobs of each service as :func:`claim_fairly` does,
    ``most`` together.
    """
    release_delayed(tx, at)
    found = list[Job]()
    for service, candidates in offers:
        found += claim_fairly(tx, service, candidates, most - len(found), at, ended, services)
    return Claimed(_with_bundles(tx, found), next_due(tx))


def _with_bundles(tx: Tx, found: Sequence[Job]) -> list[Job]:
    """With the bytes of small bundles, which are sent next: a read for each costs a hop to the
    database's thread.
    """
    files = {job.bundle.file for job in found if job.bundle and job.bundle.size <= ROW_BYTES}
    contents = {file: bundles.content(tx, file) for file in files}
    return [
        dataclasses.replace(job, bundle=dataclasses.replace(job.bundle, content=contents[file]))
        if job.bundle and (file := job.bundle.file) in contents
        else job
        for job in found
    ]


def claim_fairly(
    tx: Tx,
    service: Service,
    candidates: Sequence[Candidate],
    most: int,
    at: Micros,
    ended: Mapping[AttemptKey, str],
    services: Mapping[str, Service],
) -> list[Job]:
    """Queued → Processing for the jobs of a service whose turn it is, in one transaction that
    also counts what users and agents hold. The turn goes round the users, from the one behind
    whom was served last.

    Args:
        candidates: the agents that take jobs of it now.
        most: at most so many.
        ended: attempts that need no slot of this agent any more, though their jobs hold one.
        services: all, since their jobs hold slots of the same agents.

    Returns:
        The jobs, each at the beginning of its next attempt. Neither the service's quotas nor
        an agent's slots are exceeded. Its cost does not depend on the length of the queue.
    """
    users, agents, runs = _held(tx, service.name, candidates, ended, services)
    free = max(0, min(most, service.max_runs - sum(users.values())))
    if not choose.room(candidates, agents, max(1, service.pack), runs, free):
        return []  # without a statement
    sql = "SELECT last_user, paused FROM services WHERE name = :service"
    rows = tx.rows(sql, {"service": service.name})
    last_user = rows[0]["last_user"] if rows else ""
    if rows and rows[0]["paused"]:
        return []
    retired = {row["name"] for row in tx.rows(_RETIRED)}
    active = [one for one in candidates if one.name not in retired]
    free = choose.room(active, agents, max(1, service.pack), runs, free)
    chosen = _due(tx, service, users, free, last_user) if free else []
    packs = [service.pack_of(one.array_index) for one in chosen]
    places = choose.place(active, agents, packs, runs)
    claimed = []
    for waiting, candidate in zip(chosen, places, strict=False):
        move = Move(
            waiting.job_id,
            waiting.attempt,
            JobState.QUEUED,
            JobState.PROCESSING,
            at,
            f"being sent to agent {candidate.name}",
            changes={"agent": candidate.name},
        )
        job = jobs.move(tx, move)
        if job is not None:
            claimed.append(job if job.attempt == 1 else _with_starts(tx, job))
    if claimed and claimed[-1].user_id != last_user:
        tx.rows(
            """
            INSERT INTO services (name, last_user) VALUES (:service, :user)
            ON CONFLICT (name) DO UPDATE SET last_user = :user
            """,
            {"service": service.name, "user": claimed[-1].user_id},
        )
    return claimed


def _with_starts(tx: Tx, job: Job) -> Job:
    started = "SELECT count(*) AS count FROM attempts WHERE job_id = :id AND started_at IS NOT NULL"
    (row,) = tx.rows(started, {"id": job.id})
    return dataclasses.replace(job, earlier_starts=row["count"])


def _held(
    tx: Tx,
    service: str,
    candidates: Sequence[Candidate],
    ended: Mapping[AttemptKey, str],
    services: Mapping[str, Service],
) -> tuple[Mapping[str, int], dict[str, float], dict[str, int]]:
    """Jobs of each user of the service; of each candidate the slots that jobs need, and the jobs of
    the service.
    """
    taken, over = changes.all_of(tx), changes.Totals()
    for key, agent in ended.items():
        holder = taken.holders.get(key.job_id)
        if holder is not None and (holder.attempt, holder.agent) == (key.attempt, agent):
            over.add(key.job_id, holder)
    packs = {one.name: one.pack for one in services.values() if one.pack > 1}
    held, runs = dict[str, float](), dict[str, int]()
    for one in candidates:
        needed: float = taken.agents[one.name] - over.agents[one.name]
        for name, pack in packs.items() if one.packs else ():
            jobs = taken.tasks[one.name, name] - over.tasks[one.name, name]
            if jobs > 0:
                needed = choose.add(needed - jobs, pack, jobs)
        held[one.name] = needed
        runs[one.name] = taken.runs[one.name, service] - over.runs[one.name, service]
    return taken.users.get(service, {}), held, runs


def _due(
    tx: Tx, service: Service, held: Mapping[str, int], free: int, last_user: str
) -> list[Waiting]:
    """Whose turn it is: goes round the users once, from the one behind whom was served last."""
    queue: list[Waiting] = []
    after, up_to = last_user, None
    while True:
        each = min(free, service.runs_per_user)
        rows, last = _waiting(tx, service.name, (after, up_to), users=free + len(held), each=each)
        queue += _with_exceptions(tx, service, rows, each, free)
        chosen = choose.pick(queue, held, service, free)
        # Nobody gets two while another waits for one.
        if len({one.user_id for one in chosen}) == free:
            return chosen
        if last is not None:
            after = last
        elif up_to is None and last_user:
            after, up_to = "", last_user
        else:
            return chosen


def _with_exceptions(
    tx: Tx, service: Service, rows: list[Waiting], each: int, free: int
) -> list[Waiting]:
    """The jobs, and more of the users who may run more than others. Only these cost a statement."""
    counts = Counter(one.user_id for one in rows) if service.runs_by_user.values else {}
    for user, count in counts.items():
        most = min(free, service.runs_of(user))
        if count < each or most <= each:
            continue
        more = tx.rows(
            f"""
            SELECT id, user_id, attempt, array_index FROM jobs
            WHERE {READY} AND service = :service AND user_id = :user
            ORDER BY priority DESC, id LIMIT :most
            """,  # noqa: S608 - no user input
            {"service": service.name, "user": user, "most": most},
        )
        rows += [_waiting_job(row) for row in more[count:]]
    return rows


def _waiting(
    tx: Tx, service: str, between: tuple[str, str | None], users: int, each: int
) -> tuple[list[Waiting], str | None]:
    """Jobs that may be sent: the first ``each`` of the next ``users`` users.

    Args:
        between: users behind the first, up to and with the second (None: up to the last).

    Returns:
        The jobs, and the last user looked at (None: there are no further ones). It steps from user
        to user through the index: its cost is the users looked at, not the queue.
    """
    after, up_to = between
    bound = "" if up_to is None else "AND user_id <= :up_to"
    rows = tx.rows(
        f"""
        WITH RECURSIVE line (user_id, number) AS (
            SELECT ({_NEXT_USER.format(after=":after", bound=bound)}), 1
            UNION ALL
            SELECT ({_NEXT_USER.format(after="line.user_id", bound=bound)}), number + 1
            FROM line WHERE line.user_id IS NOT NULL AND number < :users
        )
        SELECT line.user_id, number, jobs.id, jobs.attempt, jobs.array_index
        FROM line LEFT JOIN jobs ON jobs.id IN (
            SELECT id FROM jobs WHERE {READY} AND service = :service AND user_id = line.user_id
            ORDER BY priority DESC, id LIMIT :each
        )
        WHERE line.user_id IS NOT NULL ORDER BY number, jobs.priority DESC, jobs.id
        """,  # noqa: S608 - no user input
        {"service": service, "after": after, "up_to": up_to, "users": users, "each": each},
    )
    last = rows[-1]["user_id"] if rows and rows[-1]["number"] == users else None
    return [_waiting_job(row) for row in rows if row["id"] is not None], last


def _waiting_job(row: Row) -> Waiting:
    return Waiting(row["id"], row["user_id"], row["attempt"], row["array_index"])
