"""Claims: users' turns and free slots are counted in the transaction that moves the jobs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from server.domain import choose
from server.domain.choose import Candidate, Waiting
from server.domain.jobs import ROW_BYTES, Job, Move
from server.domain.service import Service
from server.store import bundles, jobs, queue
from server.store.queue import READY
from server.store.totals import Totals, all_of
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.sql import Row, Tx
from shared.wire import JobState

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
    queue.release_delayed(tx, at)
    found = list[Job]()
    for service, candidates in offers:
        found += claim_fairly(tx, service, candidates, most - len(found), at, ended, services)
    return Claimed(_with_bundles(tx, found), queue.next_due(tx))


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
    free = min(most, choose.free_slots(service, users))
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
    totals, over = all_of(tx), Totals()
    for key, agent in ended.items():
        holder = totals.holders.get(key.job_id)
        if holder is not None and (holder.attempt, holder.agent) == (key.attempt, agent):
            over.add(key.job_id, holder)
    packs = {one.name: one.pack for one in services.values() if one.pack > 1}
    held, runs = dict[str, float](), dict[str, int]()
    for one in candidates:
        needed: float = totals.agents[one.name] - over.agents[one.name]
        for name, pack in packs.items() if one.packs else ():
            jobs = totals.tasks[one.name, name] - over.tasks[one.name, name]
            if jobs > 0:
                needed = choose.add(needed - jobs, pack, jobs)
        held[one.name] = needed
        runs[one.name] = totals.runs[one.name, service] - over.runs[one.name, service]
    return totals.users.get(service, {}), held, runs


def _due(
    tx: Tx, service: Service, held: Mapping[str, int], free: int, last_user: str
) -> list[Waiting]:
    """Whose turn it is: goes round the users once, from the one behind whom was served last."""
    queue: list[Waiting] = []
    after, up_to = last_user, None
    while True:
        each = min(free, service.runs_per_user)
        rows, last = _waiting(
            tx,
            service.name,
            (after, up_to),
            users=free + len(held),
            each=each,
        )
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
