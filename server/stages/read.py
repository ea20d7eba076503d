"""What callers read of jobs. All reads for callers are done here: a caller who may not see a job
gets the answer for an unknown id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, Final, ParamSpec, TypeVar

from server.domain import access
from server.domain.errors import NoSuchJob
from server.domain.jobs import Job
from server.store import events, jobs, requests
from server.store.events import EventsPage
from server.store.pages import Filter
from shared.principals import Principal
from shared.sql import Tx
from shared.sqlite.database import Database

_NOBODY: Final = ""
"""No user is called so."""
Args = ParamSpec("Args")
Found = TypeVar("Found")


async def read_job(database: Database, principal: Principal, job_id: int) -> Job:
    """The job, if the principal may see it. Raises NotAllowed, NoSuchJob."""
    visible = access.visible(principal)
    job = await database.read(jobs.get, job_id)
    if not visible.has(job):
        raise NoSuchJob(job_id)
    return job


async def read_events(
    database: Database, principal: Principal, job_id: int, after: int, limit: int
) -> EventsPage:
    """What happened to the job, from behind ``after``. Raises NotAllowed, NoSuchJob."""
    await read_job(database, principal, job_id)
    found = await database.read(events.of_job, job_id, after, limit + 1)
    items = found[:limit]
    return EventsPage(items, items[-1].seq if items else after, more=len(found) > limit)


async def read_list(
    database: Database,
    principal: Principal,
    read: Callable[Concatenate[Tx, Filter, Args], Found],
    where: Filter,
    *args: Args.args,
    **more: Args.kwargs,
) -> Found:
    """What the store reads of the jobs that fit and that the principal may see. Raises
    NotAllowed.
    """
    visible = access.visible(principal)
    if visible.user_id is not None and where.user_id is None:
        where = replace(where, user_id=visible.user_id)
    # One job is no list, either.
    if visible.job_id is not None or visible.user_id not in (None, where.user_id):
        where = replace(where, user_id=_NOBODY)
    where = replace(where, submitted_by=visible.submitted_by)
    return await database.read_list(read, where, *args, **more)


async def job_of_key(
    database: Database, principal: Principal, user_id: str, key: str
) -> Job | None:
    """The job that the user uploaded under an idempotency key, if the principal may see it. Raises
    NotAllowed.
    """
    visible = access.visible(principal)
    job = await database.read(requests.job_of_key, user_id, key)
    return job if job is not None and visible.has(job) else None
