"""How jobs go: expired, cleaned, forgotten, deleted; real SQL and files, simulated time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from server.domain.errors import NoSuchJob
from server.domain.jobs import Bundle, FileKind, Job, Move, NewJob
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
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.clock import SECOND
from shared.principals import LOCAL
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.kit.clock import SimClock
from tests.kit.stage_resources import resources
from tests.kit.stored import chunks

OWNER = "0123456789ab"
DAY = 86_400
SERVICES = {
    "short": Service("short", expires_after_s=10.0, forget_after_s=100.0),
    "kept": Service("kept", expires_after_s=10.0, forget_after_s=0.0),
}


@dataclass
class Place:
    """A store, its files, and a Cleaner.

    Attributes:
        again: how often the Cleaner asked for the next sweep at once.
        changed: jobs whose waiting callers were woken.
    """

    database: Database
    storage: FolderStorage
    folder: Path
    clock: SimClock = field(default_factory=SimClock)
    again: int = 0
    changed: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs = SqlJobs(self.database, self.changed.append)
        self.clean = self.cleaner(self._more)

    def cleaner(self, more: Callable[[], None]) -> Clean:
        how = resources(jobs=self.jobs, storage=self.storage, services=SERVICES, clock=self.clock)
        self.delete = Delete(how, Cancel(how, JobWakeups(), Get(how)))
        return Clean(how, self.running_servers, self.delete.finish, more)

    async def running_servers(self) -> set[str]:
        return {OWNER}

    def _more(self) -> None:
        self.again += 1

    async def add(self, count: int = 1, service: str = "short", key: str | None = None) -> Job:
        """Queued jobs with their files; the last of them."""
        job: Job | None = None
        for _ in range(count):
            async with self.storage.pending(FileKind.BUNDLE) as pending:
                bundle = Bundle(await pending.put(chunks(b"bundle")), 6, "digest")
                now = self.clock.now()
                new = NewJob(
                    "ann", service, bundle, Limits(), 60.0, now, tags=("t",), idempotency_key=key
                )
                job, fresh = await self.jobs.insert(new, "queued")
                if fresh and job.bundle is not None and job.bundle.file == bundle.file:
                    pending.commit()  # else another job's file with the same content is used
        assert job is not None
        return job

    async def end(self, *jobs: Job) -> None:
        now = self.clock.now()
        changes = {"ended_at": now, "expires_at": now + 10 * SECOND}
        for job in jobs:
            await self.jobs.move(
                Move(job.id, 0, JobState.QUEUED, JobState.CANCELLED, now, "over", changes=changes)
            )

    async def sweep(self) -> None:
        """Until nothing more is to be done at once."""
        while True:
            before = self.again
            await self.clean.run_once()
            if self.again == before:
                return

    def age(self, path: Path, seconds: float = 2 * DAY) -> None:
        """Let the file be that old."""
        at = self.clock.now() / SECOND - seconds
        os.utime(path, (at, at))

    def lay_out(self, count: int, kind: FileKind = FileKind.BUNDLE) -> list[Path]:
        """Files that no row refers to, two days old."""
        paths = []
        for number in range(count):
            path = stored_path(self.folder, kind, f"{number:032x}"[::-1])
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"no row")
            self.age(path)
            paths.append(path)
        return paths

    async def sweep_orphans(self, clean: Clean) -> int:
        """Two sweeps, an hour apart, of files that are all old; how many were removed."""
        for name in self.stored():
            if not (self.folder / name).is_symlink():
                self.age(self.folder / name)
        removed = await clean.run_once()
        await self.clock.advance(3_600)
        return removed + await clean.run_once()

    def stored(self) -> set[str]:
        return {
            str(path.relative_to(self.folder))
            for kind in ("bundles", "results")
            for path in (self.folder / kind).rglob("*")
            if not path.is_dir()
        }

    async def count(self, table: str) -> int:
        return int((await self.database.rows(f"SELECT count(*) FROM {table}"))[0][0])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    numbers = iter(range(10_000))
    names = (OWNER, lambda: f"{next(numbers) * 0x1234567:020x}"[::-1])
    scratch = FolderScratch(tmp_path / "staging", *names)
    storage = FolderStorage(tmp_path, scratch, *names)
    database = await Database.open(tmp_path / "x.sqlite", MIGRATIONS)
    yield Place(database, storage, tmp_path)
    await database.close()


async def test_many_expire_in_few_commits_and_not_all_in_one_sweep(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = await place.add(250)
    await place.end(*[await place.jobs.get(number) for number in range(1, last.id + 1)])
    await place.clock.advance(11)
    await place.clean.run_once()  # the orphan sweep of the start
    left = len(await place.jobs.expired(place.clock.now(), 1_000))
    assert (left, place.again) == (50, 1)
    commits = 0
    write = place.database.write

    def counted(change: Callable[..., object]) -> object:
        nonlocal commits
        commits += 1
        return write(change)  # type: ignore[arg-type]

    monkeypatch.setattr(place.database, "write", counted)
    assert await place.clean.run_once() >= 50
    assert commits <= 3
    await place.sweep()
    assert place.stored() == set()
    assert len((await place.jobs.page(Filter(state=JobState.CLEANED), None, 500))[0]) == 250
    assert [job.state for job in place.changed].count(JobState.CLEANED) == 250


async def test_a_stop_does_not_wait_for_all_that_has_expired(place: Place) -> None:
    last = await place.add(250)
    await place.end(*[await place.jobs.get(number) for number in range(1, last.id + 1)])
    await place.clock.advance(11)
    stop, wakeup = asyncio.Event(), asyncio.Event()

    def more() -> None:
        stop.set()  # while the first sweep is under way
        wakeup.set()

    clean = place.cleaner(more)
    await Loop("cleaner", clean, 60.0, wakeup, place.clock).run(stop)
    assert len(await place.jobs.expired(place.clock.now(), 1_000)) == 50


async def test_a_crash_before_the_files_are_removed_leaves_orphans_only(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await place.add()
    await place.end(job)
    await place.clock.advance(11)

    async def dies(_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(place.storage, "delete", dies)
        with pytest.raises(MemoryError):
            await place.clean.run_once()
    assert (await place.jobs.get(job.id)).state is JobState.CLEANED
    assert len(place.stored()) == 1
    await place.sweep_orphans(place.cleaner(place._more))
    assert place.stored() == set()


async def test_what_others_put_into_the_folder_stops_nothing_and_is_left_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await place.add()
    assert kept.bundle is not None
    orphans = ["aa" + "0" * 30, "bb" + "0" * 30]
    for name in orphans:
        path = stored_path(place.folder, FileKind.BUNDLE, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no row")
    strangers = [
        place.folder / "bundles" / ".DS_Store",
        place.folder / "bundles" / "ab",
        place.folder / "bundles" / "aa" / "aa-notes.txt",
    ]
    for stranger in strangers:
        stranger.write_bytes(b"?")
    (place.folder / "results" / "zz").symlink_to(place.folder / "nowhere")
    listdir = os.listdir

    def unreadable(path: Path) -> list[str]:
        if Path(path).name == "bb":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr("server.storage.folder.os.listdir", unreadable)
    await place.sweep_orphans(place.clean)
    assert place.stored() == {
        str(stored_path(Path(), FileKind.BUNDLE, kept.bundle.file)),
        f"bundles/bb/{orphans[1]}",
        *(str(stranger.relative_to(place.folder)) for stranger in strangers),
        "results/zz",
    }


async def _known(place: Place) -> dict[int, JobState]:
    jobs, _ = await place.jobs.page(Filter(), None, 10)
    return {job.id: job.state for job in jobs}


async def test_a_cleaned_job_is_forgotten_when_its_service_says(place: Place) -> None:
    for service in ("short", "kept", "unknown"):
        await place.end(await place.add(service=service, key=service))
    await place.clock.advance(99)
    await place.sweep()
    assert await _known(place) == {1: JobState.CLEANED, 2: JobState.CLEANED, 3: JobState.CLEANED}
    await place.clock.advance(2)
    await place.sweep()
    assert set(await _known(place)) == {2, 3}
    await place.clock.advance(89 * DAY)
    await place.sweep()
    assert set(await _known(place)) == {2, 3}
    await place.clock.advance(2 * DAY)  # 90 days, of a service that is no more
    await place.sweep()
    assert set(await _known(place)) == {2}
    assert await place.count("events") == 3
    assert await place.count("job_tags") == 1
    assert (await place.add()).id == 4


async def test_a_job_that_has_not_ended_is_never_forgotten(place: Place) -> None:
    job = await place.add()
    await place.clock.advance(1_000 * DAY)
    await place.sweep()
    assert (await place.jobs.get(job.id)).state is JobState.QUEUED
    assert len(place.stored()) == 1


async def test_an_idempotency_key_is_known_for_a_day(place: Place) -> None:
    first = await place.add(key="k")
    await place.clock.advance(DAY - 1)
    await place.sweep()
    assert (await place.add(key="k")).id == first.id
    await place.clock.advance(2)
    await place.sweep()
    assert (await place.add(key="k")).id != first.id


async def test_an_idempotency_key_does_not_outlive_what_its_job_left(place: Place) -> None:
    first = await place.add(key="k")
    await place.end(first)
    await place.clock.advance(11)
    await place.sweep()
    again = await place.add(key="k")
    assert (again.state, again.id != first.id) == (JobState.QUEUED, True)
    await place.end(again)
    await place.delete(LOCAL, again.id, 0.0)
    assert (await place.add(key="k")).id > again.id


async def test_an_ended_job_can_be_deleted_and_its_number_is_not_given_again(place: Place) -> None:
    job = await place.add(key="k")
    assert len(place.stored()) == 1
    await place.end(job)
    assert await place.delete(LOCAL, job.id, 0.0) is None
    assert place.changed[-1].id == job.id
    for table in ("jobs", "events", "job_tags", "idempotency_keys"):
        assert await place.count(table) == 0
    assert place.stored() == set()
    with pytest.raises(NoSuchJob):
        await place.delete(LOCAL, job.id, 0.0)
    assert (await place.add()).id == job.id + 1


async def test_a_file_without_a_row_goes_a_day_old_in_the_second_sweep(place: Place) -> None:
    await place.add()
    old, young = place.lay_out(2)
    place.age(young, DAY - 3_600 - 10)
    for hour in range(4):
        await place.clean.run_once()
        await place.clean.run_once()  # nothing is looked at again within the hour
        assert (old.exists(), young.exists()) == (hour < 1, hour < 3), hour
        await place.clock.advance(3_600)
    assert len(place.stored()) == 1


@pytest.mark.parametrize("jump_s", [30 * DAY, -30 * DAY])
async def test_a_clock_that_jumps_makes_no_file_an_orphan(place: Place, jump_s: float) -> None:
    """The server's clock does not jump; a file's own time may. The hour is counted steadily."""
    (path,) = place.lay_out(1)
    place.age(path, jump_s)
    for _ in range(3):
        await place.clean.run_once()
    assert path.exists()


async def test_at_most_5_percent_of_the_files_are_removed_in_a_sweep(place: Place) -> None:
    paths = place.lay_out(60)
    await place.sweep()
    left = []
    for _ in range(3):
        await place.clock.advance(3_600)
        await place.sweep()
        left.append((place.clean.orphans_left, len(place.stored())))
    assert left == [(57, 57), (55, 55), (53, 53)]
    assert sum(path.exists() for path in paths) == 53


async def test_at_most_100_are_removed_in_a_sweep_however_many_files_there_are(
    place: Place,
) -> None:
    place.lay_out(2_200)
    await place.sweep()
    await place.clock.advance(3_600)
    await place.sweep()
    assert (len(place.stored()), place.clean.orphans_left) == (2_100, 2_100)


async def test_the_last_orphan_of_a_small_folder_goes_and_is_no_trouble(place: Place) -> None:
    place.lay_out(1)
    assert await place.sweep_orphans(place.clean) == 1
    assert (place.stored(), place.clean.orphans_left) == (set(), 0)


async def test_a_restart_begins_to_count_sweeps_again(place: Place) -> None:
    place.lay_out(1)
    for _ in range(3):
        await place.cleaner(place._more).run_once()
        await place.clock.advance(3_600)
    assert len(place.stored()) == 1


async def test_a_file_that_gets_its_row_between_two_sweeps_stays(place: Place) -> None:
    (path,) = place.lay_out(1)
    await place.clean.run_once()
    await place.jobs.insert(
        NewJob("ann", "short", Bundle(path.name, 6, "d"), Limits(), 60.0, 10), "queued"
    )
    await place.clock.advance(3_600)
    await place.clean.run_once()
    assert path.exists()


async def test_where_the_database_is_is_written_down_once_a_minute(place: Place) -> None:
    written = 0

    async def keep_record() -> None:
        nonlocal written
        written += 1

    place.clean._keep_record = keep_record
    for _ in range(4):
        await place.clean.run_once()
        await place.clock.advance(30)
    assert written == 2
