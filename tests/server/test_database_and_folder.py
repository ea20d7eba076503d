"""A start with a database that is not that of the data folder destroys nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from typer.testing import CliRunner

from server import data_folder
from server.data_folder import (
    RECORD,
    UNKNOWN,
    RecordKeeper,
    WrongDatabase,
    lock_folder,
    look,
    open_data,
    read_record,
)
from server.domain.jobs import Bundle, FileKind, NewJob
from server.maintenance.__main__ import program
from server.settings.tables import ServerTable
from server.storage.folder import FolderStorage, stored_names
from server.storage.scratch import FolderScratch
from server.store import copies
from server.store.jobs import SqlJobs
from shared.wire import JobState, Limits
from tests.kit.clock import SimClock
from tests.kit.disks import mounted
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.inline_database import SimulatedCrash
from tests.kit.server_http import driving

DATABASE = "ferryman.sqlite"
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Opened:
    jobs: SqlJobs
    storage: FolderStorage
    keeper: RecordKeeper

    async def upload(self, content: bytes) -> int:
        """Bytes before row, as the server does it."""
        async with self.storage.pending(FileKind.BUNDLE) as pending:
            bundle = Bundle(await pending.put(content), len(content), content.hex())
            new = NewJob("ann", "my_service", bundle, Limits(), 60.0, 10)
            job, _ = await self.jobs.insert(new, "queued")
            pending.commit()
        return job.id


class Place:
    """A server's data folder, and servers that start with it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.database = self.data / DATABASE

    @asynccontextmanager
    async def started(self, *, new_database: bool = False, **table: Any) -> AsyncIterator[Opened]:
        """What a server opens first."""
        read = ServerTable(data_dir=self.data, **table)
        async with AsyncExitStack() as stack:
            lock_folder(read, stack)
            _, database, keeper = await open_data(
                read, SimClock(), stack, new_database=new_database
            )
            owner = f"{next(_NUMBERS):012x}"
            numbers = (owner, lambda: f"{next(_NUMBERS):020x}")
            scratch = FolderScratch(self.data / "staging", *numbers)
            storage = FolderStorage(self.data, scratch, *numbers)
            yield Opened(SqlJobs(database, lambda job: None), storage, keeper)

    async def upload(self, count: int = 1, **how: Any) -> list[int]:
        async with self.started(**how) as opened:
            return [await opened.upload(b"%d" % next(_NUMBERS)) for _ in range(count)]

    async def refused(self, **how: Any) -> str:
        with pytest.raises(WrongDatabase) as refusal:
            await self.upload(0, **how)
        return str(refusal.value)

    def files(self, below: str = "") -> set[str]:
        """All stored files."""
        return {
            name
            for kind in FileKind
            for page in stored_names(self.data / below, kind)
            for name in page
        }

    def files_aside(self) -> set[str]:
        return {name for day in (self.data / UNKNOWN).glob("*") for name in self.files(str(day))}

    def remove_database(self) -> None:
        for path in self.database.parent.glob(f"{self.database.name}*"):
            path.unlink()

    def keep_database(self, name: str) -> Path:
        """A copy of it, made while no server runs."""
        shutil.copy(self.database, self.folder / name)
        return self.folder / name

    def put_back(self, copy: Path) -> None:
        self.remove_database()
        shutil.copy(copy, self.database)

    def marks(self, path: Path | None = None) -> copies.Marks:
        with closing(sqlite3.connect(path or self.database)) as connection:
            return copies.marks(connection)

    def rows(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("how", ["missing", "empty", "elsewhere"])
async def test_a_start_without_the_database_is_refused_and_loses_nothing(
    place: Place, how: str
) -> None:
    await place.upload(3)
    files, right = place.files(), place.keep_database("right")
    more: dict[str, Any] = {}
    if how == "elsewhere":
        (place.folder / "mount").mkdir()
        more["db_path"] = place.folder / "mount" / "new.sqlite"
    else:
        place.remove_database()
        if how == "empty":
            place.database.touch()
    await place.refused(**more)
    said = await place.refused(**more)  # the first refusal changed nothing
    assert "3 files of server" in said
    assert "is its disk mounted?" in said
    assert "--new-database" in said
    assert place.files() == files
    if how == "elsewhere":
        assert list((place.folder / "mount").iterdir()) == []
    else:
        place.put_back(right)
    async with place.started() as opened:
        assert (await opened.jobs.get(2)).state is JobState.QUEUED
    assert place.files() == files


async def test_a_new_database_begins_afresh_as_another_server(place: Place) -> None:
    await place.upload(3)
    files, was = place.files(), read_record(place.data)
    assert was is not None
    place.remove_database()
    (new,) = await place.upload(1, new_database=True)
    assert new >= 1_000_000 + was.last_job
    (day,) = (place.data / UNKNOWN).iterdir()
    assert place.files(f"{UNKNOWN}/{day.name}") == files
    assert len(place.files()) == 1
    marks, record = place.marks(), read_record(place.data)
    assert record is not None
    assert marks.server == record.server != was.server
    assert marks.former == (was.server,)
    assert (await place.upload(1))[0] == new + 1  # from now on it is the folder's


async def test_an_older_database_goes_on_as_another_server_and_moves_the_rest_aside(
    place: Place,
) -> None:
    await place.upload(1)
    known, older = place.files(), place.keep_database("older")
    await place.upload(2)
    files, was = place.files(), place.marks()
    place.put_back(older)
    assert "files" not in await abouts_of(place)
    with structlog.testing.capture_logs() as logs:
        async with driving(place.folder, FakeOrchestrator(), gone=True) as client:
            (logged,) = [one for one in logs if one["event"] == "server.became_another"]
            assert (logged["files"], logged["former"]) == (2, [was.server])
            await client.server.context.troubles()  # looks at the disk
            _, _, body = await client.get("/api/v1/status")
            kinds = {one["kind"]: one for one in json.loads(body)["troubles"]}
            assert not kinds["files_moved_aside"]["is_serious"]
            assert (await client.get("/health"))[0] == 200
            assert (await client.job(1, until="Queued"))["status"] == "Queued"
            assert await client.upload() > 1_000_000 + was.last_job
    (day,) = (place.data / UNKNOWN).iterdir()
    assert place.files(f"{UNKNOWN}/{day.name}") == files - known
    found = (await abouts_of(place))["files"]
    assert (found["level"], str(day.parent) in found["text"]) == ("warning", True)
    assert "somebody misses them" in found["hint"]
    assert known < place.files()
    assert place.marks().former == (was.server,)
    became = place.marks().server
    await place.upload(0)
    assert place.marks().server == became  # once


async def test_a_copy_from_before_it_became_another_server_is_an_older_one_too(
    place: Place,
) -> None:
    await place.upload(1)
    older, servers = place.keep_database("older"), [place.marks().server]
    for _ in range(3):
        await place.upload(1)
        before, aside = place.files(), place.files_aside()
        place.put_back(older)
        await place.upload(0)
        assert place.files() | place.files_aside() == before | aside
        marks = place.marks()
        assert set(marks.former) == set(servers), "agents end what they hold for each of them"
        assert read_record(place.data) == marks
        servers.append(marks.server)


@pytest.mark.parametrize(
    ("name", "disk"),
    [(name, ("-t", "tmpfs", "none")) for name in (*FileKind, "staging", UNKNOWN)]
    + [("bundles", ("--bind",))],
)
async def test_a_part_of_the_folder_on_another_file_system_is_named_before_anything_is_changed(
    place: Place, name: str, disk: tuple[str, ...]
) -> None:
    """Files are moved there by a rename. One disk that is mounted twice is two, as volumes are."""
    await place.upload(1)
    older = place.keep_database("older")
    await place.upload(1)
    place.put_back(older)
    before = (place.data / RECORD).read_bytes(), place.database.read_bytes()
    if disk == ("--bind",):
        disk = ("--bind", str(place.folder))
    with mounted(place.data / name, *disk):
        for _ in range(2):
            with pytest.raises(OSError, match="another file system") as refusal:
                await place.upload(0)
            assert refusal.value.filename == str(place.data / name)
        assert ((place.data / RECORD).read_bytes(), place.database.read_bytes()) == before
    await place.upload(1)


async def test_an_older_database_is_known_by_its_jobs_without_another_start(place: Place) -> None:
    """The copy was made while the server ran, as by ``cp``."""
    async with place.started() as opened:
        await opened.upload(b"first")
        with closing(sqlite3.connect(place.database)) as live:
            live.execute("VACUUM INTO ?", (str(place.folder / "older"),))
        await opened.upload(b"second")
        await opened.keeper.keep()  # as the Cleaner does each minute; then it is killed
        record = (place.data / RECORD).read_bytes()
    (place.data / RECORD).write_bytes(record)
    files = place.files()
    place.put_back(place.folder / "older")
    await place.upload(0)
    (day,) = (place.data / UNKNOWN).iterdir()
    assert place.files() | place.files(f"{UNKNOWN}/{day.name}") == files


async def test_a_copy_from_before_the_last_start_is_known_by_the_count_of_starts(
    place: Place,
) -> None:
    """The server was killed before the Cleaner wrote the record again."""
    await place.upload()
    shutil.copyfile(place.database, place.folder / "older")
    async with place.started() as opened:
        record = (place.data / RECORD).read_bytes()
        await opened.upload(b"second")
    (place.data / RECORD).write_bytes(record)
    files = place.files()
    place.put_back(place.folder / "older")
    await place.upload(0)
    (day,) = (place.data / UNKNOWN).iterdir()
    assert place.files() | place.files(f"{UNKNOWN}/{day.name}") == files


async def test_the_database_of_another_server_is_refused(place: Place, tmp_path: Path) -> None:
    await place.upload(2)
    files = place.files()
    (tmp_path / "b").mkdir()
    other = Place(tmp_path / "b")
    await other.upload(1)
    said = await place.refused(db_path=other.database)
    assert f"is that of server {other.marks().server[:8]}" in said
    assert place.files() == files
    before = other.marks()
    await place.upload(1, db_path=other.database, new_database=True)
    assert place.marks(other.database).former[-1] == before.server
    assert len(place.files(f"{UNKNOWN}/{next((place.data / UNKNOWN).iterdir()).name}")) == 2


async def test_a_folder_of_the_version_before_takes_the_id_of_its_database(place: Place) -> None:
    await place.upload(2)
    server, files = place.marks().server, place.files()
    (place.data / RECORD).unlink()
    older = place.keep_database("older")
    await place.upload(0)
    record = read_record(place.data)
    assert record is not None
    assert (record.server, place.files()) == (server, files)

    (place.data / RECORD).unlink()
    fresh = Place(place.folder / "fresh")
    fresh.folder.mkdir()
    await fresh.upload(0)
    place.put_back(fresh.keep_database("new"))
    assert "knows none of them" in await place.refused()
    assert place.files() == files
    place.put_back(older)
    await place.upload(0)
    assert place.files() == files


async def test_a_database_whose_files_are_all_away_is_not_used(place: Place) -> None:
    """The disk of the data folder is not mounted: every job would fail for lack of its bundle."""
    await place.upload(2, db_path=place.folder / "kept.sqlite")
    place.data.rename(place.folder / "away")
    said = await place.refused(db_path=place.folder / "kept.sqlite")
    assert "holds no files, and the database" in said
    assert "refers to some (is the folder's disk mounted?): mount it" in said
    assert "afresh" not in said
    (place.data / "lock").unlink()
    shutil.rmtree(place.data)
    (place.folder / "away").rename(place.data)
    async with place.started(db_path=place.folder / "kept.sqlite") as opened:
        assert (await opened.jobs.get(2)).state is JobState.QUEUED


async def on_host(place: Place, *words: str, **table: Any) -> tuple[int, Any]:
    """The exit code of a command that looks at the folder of the settings, and its document."""
    file = place.folder / "server.toml"
    lines = {"data_dir": place.data, "port": 0, **table}.items()
    file.write_text("[server]\n" + "".join(f"{key} = '{value}'\n" for key, value in lines))
    given = [*words, "--config", str(file)]
    done = await asyncio.to_thread(CliRunner().invoke, program, given)
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr


async def abouts_of(place: Place, **table: Any) -> dict[str, Any]:
    """What the doctor of the host finds."""
    _, found = await on_host(place, "doctor", **table)
    return {one["about"]: one for one in found["findings"]}


@pytest.mark.parametrize("how", ["missing", "empty", "another", "nobodys", "away", "older"])
async def test_start_doctor_check_and_verify_say_the_same_sentence(place: Place, how: str) -> None:
    table = {"db_path": place.folder / "kept.sqlite"}
    await place.upload(1, **table)
    place.database = table["db_path"]
    older = place.keep_database("older")
    await place.upload(2, **table)
    fresh = Place(place.folder / "fresh")
    fresh.folder.mkdir()
    await fresh.upload(1 if how == "another" else 0)
    if how == "away":
        place.data.rename(place.folder / "away")
        place.data.mkdir()
    elif how in ("missing", "empty"):
        place.database.unlink()
        if how == "empty":
            place.database.touch()
    else:
        place.put_back(older if how == "older" else fresh.keep_database("fresh"))
    if how == "nobodys":
        (place.data / RECORD).unlink()
    wrong = look(place.data, place.database)
    assert wrong is not None
    if how == "older":
        assert "A start makes another server of this one: agents end what they hold" in str(wrong)
    else:
        assert str(wrong) == await place.refused(**table)
    abouts = await abouts_of(place, **table)
    said = abouts["folder and database"]
    assert (said["level"], said["text"], said["hint"]) == ("problem", wrong.text, wrong.advice)
    assert "database" not in abouts  # nothing good is said of the wrong one
    code, found = await on_host(place, "check", **table)
    assert (code, str(wrong) in found["warnings"]) == (0, True)
    code, found = await on_host(place, "admin", "verify", "--json", **table)
    if how in ("missing", "empty"):
        assert (code, str(wrong) in found) == (74, True)
        return
    first, *others = found["findings"]
    assert (code, first["kind"], first["message"]) == (1, "wrong_database", str(wrong))
    assert not [one for one in others if "after a day" in one["message"]]


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("step", ["move", "count", "record", "renamed"])
async def test_a_killed_start_does_not_make_the_database_older_and_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str, older: bool
) -> None:
    await place.upload(1)
    copy = place.keep_database("older")
    await place.upload(1)
    files, was = place.files(), place.marks()
    if older:
        place.put_back(copy)

    def dies(*_: object) -> None:
        raise SimulatedCrash

    def dies_later(folder: Path, marks: copies.Marks) -> None:
        write(folder, marks)
        raise SimulatedCrash

    write = data_folder.write_record
    for _ in range(3):
        with monkeypatch.context() as patched:
            if step == "move":
                patched.setattr(data_folder, "move_aside", dies)
            elif step == "count":
                patched.setattr(copies, "count_start", dies)
            else:
                later = dies_later if step == "renamed" else dies
                patched.setattr(data_folder, "write_record", later)
            if older or step != "move":
                with pytest.raises(SimulatedCrash):
                    await place.upload(0)
    await place.upload(0)
    aside = [path.name for path in (place.data / UNKNOWN).glob("*")]
    there = place.files().union(*(place.files(f"{UNKNOWN}/{day}") for day in aside))
    assert there == files
    assert len(place.files()) == (1 if older else 2)
    assert (place.marks().server == was.server) is not older
    assert was.server in (place.marks().server, *place.marks().former)
    marks = place.marks()
    await place.upload(0)
    assert place.marks().server == marks.server


async def test_a_disk_that_is_full_does_not_keep_the_right_database_from_starting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.upload(1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(data_folder, "write_record", full)
        async with place.started() as opened:
            assert (await opened.jobs.get(1)).state is JobState.QUEUED
    await place.upload(0)
    assert len(place.files()) == 1


async def test_a_record_that_cannot_be_read_is_named(place: Place) -> None:
    await place.upload(1)
    (place.data / RECORD).write_text("{")
    assert str(place.data / RECORD) in await place.refused()
    assert len(place.files()) == 1
