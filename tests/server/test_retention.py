"""How jobs go: expired, cleaned, forgotten, deleted; real SQL and files, simulated time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from server.domain.errors import NoSuchJob
from server.domain.jobs import Bundle, FileKind, Job
from server.domain.service import Service
from server.loops.runner import Loop
from server.loops.wakeups import JobWakeups
from server.ports import Filter
from server.stages.by_hand import Delete
from server.stages.cancel import Cancel
from server.stages.clean import Clean
from server.stages.get import Get
from server.storage.folder import FolderStorage, stored_path
from server.storage.scratch import FolderScratch
from server.store.migrations import MIGRATIONS
from shared.clock import SECOND
from shared.principals import LOCAL
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.kit.clock import SimClock
from tests.kit.store import Store, chunks, resources

OWNER = "0123456789ab"
DAY = 86_400
SERVICES = {
    "short": Service("short", expires_after_s=10.0, forget_after_s=100.0),
    "kept": Service("kept", expires_after_s=10.0, forget_after_s=0.0),
}


class Place:
    """A store, its files, and a Cleaner.

    Attributes:
        again: how often the Cleaner asked for the next sweep at once.
        changed: jobs whose waiting callers were woken.
        kept: how often the folder's record was written.
    """

    def __init__(self, database: Database, storage: FolderStorage, folder: Path) -> None:
        self.storage, self.folder, self.clock = storage, folder, SimClock()
        self.again = self.kept = 0
        self.changed: list[Job] = []
        self.jobs = Store(database, self.changed)
        self.clean = self.cleaner(self._more)

    def cleaner(self, more: Callable[[], None]) -> Clean:
        how = resources(jobs=self.jobs, storage=self.storage, services=SERVICES, clock=self.clock)
        self.delete = Delete(how, Cancel(how, JobWakeups(), Get(how)))
        return Clean(how, self._servers, self.delete.finish, more, self._keep)

    async def _servers(self) -> set[str]:
        return {OWNER}

    async def _keep(self) -> None:
        self.kept += 1

    def _more(self) -> None:
        self.again += 1

    async def add(self, service: str = "short", key: str | None = None) -> Job:
        """A queued job with its file."""
        async with self.storage.pending(FileKind.BUNDLE) as pending:
            bundle = Bundle(await pending.put(chunks(b"bundle")), 6, "digest")
            fields: dict[str, Any] = {
                "created_at": self.clock.now(),
                "tags": ("t",),
                "idempotency_key": key,
            }
            job = await self.jobs.upload(service=service, bundle=bundle, **fields)
            if job.bundle is not None and job.bundle.file == bundle.file:
                pending.commit()  # else another job's file with the same content is used
        return job

    async def end(self, job: Job) -> Job:
        """It expires in 10 s."""
        at = self.clock.now()
        changes = {"ended_at": at, "expires_at": at + 10 * SECOND}
        return await self.jobs.to(job, JobState.CANCELLED, at, changes=changes)

    async def sweep(self, after_s: float = 0) -> None:
        """Until nothing more is to be done at once."""
        await self.clock.advance(after_s)
        while True:
            before = self.again
            await self.clean.run_once()
            if self.again == before:
                return

    def age(self, path: Path, seconds: float = 2 * DAY) -> None:
        """Let the file be that old."""
        at = self.clock.now() / SECOND - seconds
        os.utime(path, (at, at))

    def lay_out(self, count: int) -> list[Path]:
        """Files that no row refers to, two days old."""
        paths = []
        for number in range(count):
            path = stored_path(self.folder, FileKind.BUNDLE, f"{number:032x}"[::-1])
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"no row")
            self.age(path)
            paths.append(path)
        return paths

    def stored(self) -> set[str]:
        tops = [self.folder / kind for kind in FileKind]
        found = [path for top in tops for path in top.rglob("*") if not path.is_dir()]
        return {str(path.relative_to(self.folder)) for path in found}

    async def expired(self) -> int:
        return len(await self.jobs.expired(self.clock.now(), 1_000))

    async def known(self) -> dict[int, JobState]:
        jobs, _ = await self.jobs.page(Filter(), None, 10)
        return {job.id: job.state for job in jobs}

    async def count(self, table: str) -> int:
        (row,) = await self.jobs.rows(f"SELECT count(*) AS number FROM {table}")
        return int(row["number"])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    numbers = iter(range(10_000))
    names = (OWNER, lambda: f"{next(numbers) * 0x1234567:020x}"[::-1])
    scratch = FolderScratch(tmp_path / "staging", *names)
    storage = FolderStorage(tmp_path, scratch, *names)
    database = await Database.open(tmp_path / "x.sqlite", MIGRATIONS)
    yield Place(database, storage, tmp_path)
    await database.close()


async def test_many_expire_in_few_commits_and_a_stop_does_not_wait_for_all(place, monkeypatch):
    for _ in range(250):
        await place.end(await place.add())
    await place.clock.advance(11)
    stop, wakeup = asyncio.Event(), asyncio.Event()

    def more() -> None:
        stop.set()  # while the first sweep is under way
        wakeup.set()

    await Loop("cleaner", place.cleaner(more), 60.0, wakeup, place.clock).run(stop)
    assert await place.expired() == 50
    commits = Mock(side_effect=place.jobs.database.write)
    monkeypatch.setattr(place.jobs.database, "write", commits)
    assert await place.clean.run_once() >= 50
    assert commits.call_count <= 3
    await place.sweep()
    assert place.stored() == set()
    assert len((await place.jobs.page(Filter(state=JobState.CLEANED), None, 500))[0]) == 250
    assert [job.state for job in place.changed].count(JobState.CLEANED) == 250


async def test_what_others_put_into_the_folder_stops_nothing_and_is_left_alone(place, monkeypatch):
    await place.add()
    goes, unreadable = [
        stored_path(place.folder, FileKind.BUNDLE, two + "0" * 30) for two in ("aa", "bb")
    ]
    strangers = [place.folder / "bundles" / name for name in (".DS_Store", "ab", "aa/aa-notes.txt")]
    for path in (goes, unreadable, *strangers):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no row")
        place.age(path)
    (place.folder / "results" / "zz").symlink_to(place.folder / "nowhere")
    listdir = os.listdir

    def refuses(path: Path) -> list[str]:
        if Path(path).name == "bb":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    before = place.stored()
    monkeypatch.setattr("server.storage.folder.os.listdir", refuses)
    for _ in range(2):
        await place.sweep(after_s=3_600)
    assert before - place.stored() == {str(goes.relative_to(place.folder))}


async def test_a_cleaned_job_is_forgotten_when_its_service_says_and_others_never(place):
    for service in ("short", "kept", "unknown"):
        await place.end(await place.add(service, key=service))
    queued = await place.add("short")
    states = dict.fromkeys((1, 2, 3), JobState.CLEANED) | {queued.id: JobState.QUEUED}
    for passes_s, left in (
        (99, {1, 2, 3, 4}),
        (2, {2, 3, 4}),
        (89 * DAY, {2, 3, 4}),
        (2 * DAY, {2, 4}),  # 90 days, of a service that is no more
        (1_000 * DAY, {2, 4}),
    ):
        await place.sweep(after_s=passes_s)
        assert await place.known() == {number: states[number] for number in left}, passes_s
    assert await place.count("job_tags") == 2
    assert (len(place.stored()), (await place.add()).id) == (1, 5)


async def test_an_idempotency_key_is_known_for_a_day_unless_its_job_leaves_nothing(place):
    first = await place.add(key="day")
    await place.sweep(after_s=DAY - 1)
    assert (await place.add(key="day")).id == first.id
    await place.sweep(after_s=2)
    assert (await place.add(key="day")).id != first.id
    cleaned = await place.end(await place.add(key="cleaned"))
    await place.sweep(after_s=11)
    assert (await place.add(key="cleaned")).id > cleaned.id


async def test_an_ended_job_can_be_deleted_and_its_number_is_not_given_again(place):
    job = await place.end(await place.add(key="k"))
    assert len(place.stored()) == 1
    assert await place.delete(LOCAL, job.id, 0.0) is None
    assert place.changed[-1].id == job.id
    for table in ("jobs", "events", "job_tags", "idempotency_keys"):
        assert await place.count(table) == 0
    assert place.stored() == set()
    with pytest.raises(NoSuchJob):
        await place.delete(LOCAL, job.id, 0.0)
    assert (await place.add(key="k")).id == job.id + 1


async def test_a_file_without_a_row_goes_a_day_old_in_the_second_sweep(place):
    """Hours are counted steadily; a file's own time may jump."""
    await place.add()
    old, young, future, used = place.lay_out(4)
    place.age(young, DAY - 3_600 - 10)
    place.age(future, -30 * DAY)
    for hour in range(4):
        await place.clean.run_once()
        await place.clean.run_once()  # nothing is looked at again within the hour
        assert (old.exists(), young.exists()) == (hour < 1, hour < 3), hour
        assert place.clean.orphans_left == 0, "one goes however few there are"
        if hour == 0:  # between two sweeps, its row comes
            await place.jobs.upload(bundle=Bundle(used.name, 6, "d"))
        await place.clock.advance(3_600)
    assert (future.exists(), used.exists(), len(place.stored())) == (True, True, 3)
    place.age(future)
    for _ in range(3):  # a restart begins to count sweeps again
        await place.cleaner(place._more).run_once()
        await place.clock.advance(3_600)
    assert future.exists()


async def test_a_sweep_removes_5_percent_of_the_files_and_100_at_most(place):
    place.lay_out(60)
    await place.sweep()
    left = []
    for _ in range(3):
        await place.sweep(after_s=3_600)
        left.append((place.clean.orphans_left, len(place.stored())))
    assert left == [(57, 57), (55, 55), (53, 53)]
    place.lay_out(2_300)
    await place.sweep(after_s=3_600)
    before = len(place.stored())
    await place.sweep(after_s=3_600)
    assert before - len(place.stored()) == 100
    assert place.clean.orphans_left == len(place.stored())


async def test_where_the_database_is_is_written_down_once_a_minute(place):
    for _ in range(4):
        await place.clean.run_once()
        await place.clock.advance(30)
    assert place.kept == 2
