"""The store on a real database, as tests call it: another one needs another :class:`Store` only."""

import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

import pytest

from server.domain.choose import Candidate
from server.domain.jobs import Bundle, FileKind, Job, Move, NewJob, Result, Step
from server.domain.service import Service
from server.settings.load import LiveSettings
from server.settings.tables import ServerSettings, ServerTable
from server.stages.stage import Core, Stage
from server.stages.wakeups import JobWakeups
from server.storage.folder import Storage
from server.store import (
    batches,
    bundles,
    changes,
    dependencies,
    events,
    pages,
    queue,
    requests,
    retention,
    users,
)
from server.store import jobs as store_jobs
from server.store.changes import TOTALS, Listener
from server.store.migrations import MIGRATIONS
from shared.ids import AttemptKey
from shared.sql import Row, Tx
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.kit.clock import SimClock


class Calls:
    """The functions of a module of the store, each in a transaction of its own."""

    def __init__(self, database: Database, module: ModuleType) -> None:
        self._database, self._module = database, module

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return functools.partial(self._database.write, getattr(self._module, name))


def _by_name(*functions: Callable[..., Any]) -> Mapping[str, Callable[..., Any]]:
    return {function.__name__: function for function in functions}


_READS: Final[Mapping[str, Callable[..., Any]]] = {
    "events": lambda tx, job, after=0, limit=10**9: events.of_job(tx, job, after, limit),
    "all_events": events.page,
    "moves": events.moves,
    "attempts": lambda tx, job, most=10**9: store_jobs.attempts(tx, job, most),
    "attempt": store_jobs.attempt,
    "users": users.named,
    "waiting_users": users.waiting,
    "uploaded": lambda tx, user, at: users.uploaded(tx, at, user)[user],
    "unmet": dependencies.unmet,
    "waiting_for": dependencies.waiting_for,
    "broken_dependencies": dependencies.broken,
    "get": store_jobs.get,
    "in_states": store_jobs.in_states,
    "to_cancel": store_jobs.to_cancel,
    "stored": lambda tx, user: users.stored(tx, user)[user],
    "can_share_bundle": bundles.can_share,
    "batch": batches.get,
    "due_batches": batches.due,
    "children": batches.children_of,
    "expired": retention.expired,
    **_by_name(
        *(queue.queued_before, queue.oldest_held, queue.overdue),
        *(queue.of_service, pages.page, pages.ids, pages.counts, requests.to_delete),
        retention.files_in_use,
    ),
}
_WRITES: Final[Mapping[str, Callable[..., Any]]] = {
    "record_live": events.record_live,
    "attach_result": store_jobs.attach_result,
    "insert": requests.insert_job,
    "begin_batch": batches.begin,
    "end_batch": batches.end,
    **_by_name(
        *(store_jobs.move, queue.release_delayed),
        *(requests.retry, requests.change_service, requests.request_forget, requests.change_tags),
        *(batches.make_children, retention.forget, retention.forget_old),
    ),
}


class Jobs:
    """The functions of the store about jobs, each in a transaction of its own."""

    def __init__(
        self,
        database: Any,
        changed: Callable[[Job], None] | None = None,
        noted: Callable[[int], None] = lambda _: None,
        services: Mapping[str, Service] = MappingProxyType({}),
    ) -> None:
        self.database, self.services = database, services
        if changed is not None:
            database.listener = Listener(changed, noted)

    async def totals(self) -> changes.Totals:
        return await changes.totals_of(self.database)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name in _WRITES:
            return functools.partial(self.database.write, _WRITES[name])
        if name in _READS:
            return functools.partial(self.database.read, _READS[name])
        raise AttributeError(name)

    async def claim_fairly(
        self,
        service: Service,
        candidates: Sequence[Candidate],
        most: int,
        at: int,
        ended: Mapping[AttemptKey, str] = MappingProxyType({}),
    ) -> list[Job]:
        given = (service, candidates, most, at, ended, self.services)
        return await self.database.write(queue.claim_fairly, *given)

    async def request_cancel(self, job_id: int, at: int, by: str = "") -> Job:
        stage = Stage(core(database=self.database))
        return await stage._request_cancel(job_id, at, by)

    async def moved(self, move: Move) -> Job:
        job = await self.move(move)
        assert job is not None
        return job

    async def cancel_children(self, parent_id: int, at: int) -> None:
        while await self.database.write(batches.cancel_children, parent_id, at):
            pass

    async def clean(
        self, ended: Sequence[Job], at: int = 70
    ) -> tuple[int, list[tuple[FileKind, str]]]:
        ids, files = await self.database.write(retention.clean, ended, at)
        while await self.database.write(retention.expire_children, at):
            pass
        return len(ids), files

    async def delete(self, job_id: int) -> list[tuple[FileKind, str]]:
        is_gone, files = False, list[tuple[FileKind, str]]()
        while not is_gone:
            is_gone, released = await self.database.write(retention.delete, job_id)
            files += released
        return files


class Store(Jobs):
    def __init__(self, database: Any, changed: list[Job], **how: Any) -> None:
        super().__init__(database, changed.append, **how)
        self.changed = changed

    async def upload(
        self, user: str = "ann", service: str = "s", *, message: str = "queued", **fields: Any
    ) -> Job:
        return (await self.insert(new(user, service, **fields), message))[0]

    async def added(self, *users: str, service: str = "s") -> list[Job]:
        return [await self.upload(user, service) for user in users]

    async def claimed(self, agent: str = "node", **fields: Any) -> Job:
        return await self.moved(claim(await self.upload(**fields), agent))

    async def to(self, job: Job, state: JobState, at: int = 30, **how: Any) -> Job:
        """Make a move of the job as it was seen."""
        return await self.moved(Move(job.id, job.attempt, job.state, state, at, "moved", **how))

    async def children_of(self, parent: Job) -> list[Job]:
        found = await self.rows(f"SELECT id FROM jobs WHERE parent_id = {parent.id} ORDER BY id")
        return [await self.get(row["id"]) for row in found]

    async def rows(self, sql: str) -> Sequence[Row]:
        return await self.database.rows(sql)

    async def sql(self, sql: str) -> None:
        def change(tx: Tx) -> None:
            tx.rows(sql)
            tx.memory.clear()

        await self.database.write(change)

    async def check(self) -> None:
        await check_batches(self.database)


def new(user: str = "ann", service: str = "s", **fields: Any) -> NewJob:
    start: dict[str, Any] = {
        "bundle": Bundle("b", 1, "digest"),
        "limits": Limits(),
        "timeout_s": 60.0,
        "created_at": 10,
    }
    return NewJob(user, service, **(start | fields))


def claim(job: Job, agent: str = "node") -> Move:
    how: dict[str, Any] = {"changes": {"agent": agent}}
    return Move(job.id, job.attempt, JobState.QUEUED, JobState.PROCESSING, 20, "sent", **how)


def end(
    job: Job, state: JobState, through: tuple[Step, ...] = (), *, expires_at: int = 30, **facts: Any
) -> Move:
    changes = {"ended_at": 30, "expires_at": expires_at}
    how: dict[str, Any] = {"changes": changes, "facts": facts, "through": through}
    return Move(job.id, job.attempt, job.state, state, 30, "ended", **how)


def result(name: str, size: int = 3, **more: Any) -> Result:
    return Result(name, size, "ab", **more)


def service(name: str = "s", **more: Any) -> Service:
    return Service(name, **({"runs_per_user": 100, "max_runs": 100} | more))


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "server.sqlite", MIGRATIONS)
    yield opened
    await opened.close()


@pytest.fixture
def jobs(database: Database) -> Store:
    return Store(database, [])


_COUNTED: Final = """
    SELECT batches.*, parent.state AS parent_state,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id) AS counted_made,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND state = 'Completed') AS counted_completed,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND state = 'Failed') AS counted_failed,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND state = 'Cancelled') AS counted_cancelled,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND ended_at IS NULL) AS unended,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND ended_at IS NULL AND hold IS NULL) AS may_run
    FROM batches JOIN jobs AS parent ON parent.id = batches.parent_id
"""


async def check_batches(database: Any) -> None:
    """Raise AssertionError where a counter is not what counting says."""
    kept = database.memory.get(TOTALS)
    assert kept is None or vars(kept) == vars(await database.read(changes.all_of))
    for row in await database.rows(_COUNTED):
        seen = {name: row[name] for name in ("made", "completed", "failed", "cancelled")}
        counted = {name: row[f"counted_{name}"] for name in seen}
        if row["parent_state"] != "Cleaned":  # else its children go, some at a time
            assert seen == counted, f"batch {row['parent_id']}: {seen} is not {counted}"
        most = row["max_parallel"]
        expected = min(most, row["unended"]) if most else row["unended"]
        assert row["may_run"] == expected, f"batch {row['parent_id']}: {row['may_run']} may run"
        if row["parent_state"] in ("Completed", "Failed", "Cancelled"):
            assert row["unended"] == 0, f"children of the ended batch {row['parent_id']} are left"
    for row in await database.rows(
        """
        SELECT file, refs, (SELECT count(*) FROM jobs WHERE bundle_file = file)
            + (SELECT count(*) FROM batches WHERE bundle_file = file) AS counted FROM bundles
        """
    ):
        assert row["refs"] == row["counted"], f"bundle {row['file']} counts {row['refs']}"


def job(**fields: Any) -> Job:
    start: dict[str, Any] = {
        "id": 7,
        "state": JobState.RUNNING,
        "user_id": "ann",
        "service": "s",
        "created_at": 0,
        "queued_at": 0,
        "bundle": Bundle("b", 1, "d"),
        "limits": Limits(),
        "timeout_s": 60.0,
        "attempt": 1,
    }
    return Job(**(start | fields))


def every(**choices: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Each combination; None: not asked for."""
    found = itertools.product(*choices.values())
    return [
        {name: one for name, one in zip(choices, values, strict=True) if one is not None}
        for values in found
    ]


async def read(storage: Storage, kind: FileKind, name: str) -> bytes:
    async with storage.open(kind, name) as stream:
        return b"".join([chunk async for chunk in stream])


def settings(**server: Any) -> LiveSettings:
    """Those that are not given are as by default."""
    return LiveSettings(ServerSettings(server=ServerTable(**server)))


def core(**given: Any) -> Core:
    """The given ones; the others are not to be used."""
    how: dict[str, Any] = dict.fromkeys(("storage", "scratch", "registry", "clock"))
    how["database"] = getattr(given.pop("jobs", None), "database", None)
    how |= {"services": {}, "settings": settings(), "wakeups": JobWakeups()}
    return Core(**(how | given))
