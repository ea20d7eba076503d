"""A start with a database that is not that of the data folder destroys nothing; and what the doctor
looks at on a host.
"""

import asyncio
import grp
import itertools
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, nullcontext
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from aiohttp import web
from typer.testing import CliRunner

from client_agent.settings.agent import load
from server.domain.jobs import ROW_BYTES, FileKind
from server.maintenance import doctor
from server.maintenance.__main__ import program
from server.settings.tables import ServerSettings, ServerTable
from server.storage.folder import stored_names
from server.store import data_folder
from server.store.data_folder import RECORD, UNKNOWN, WrongDatabase, look
from shared.clock import SECOND, RealClock
from shared.settings.base import SettingsError
from shared.wire import JobState
from tests.kit.certificates import authority
from tests.kit.clock import SimClock
from tests.kit.disks import mounted
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import listening
from tests.kit.server_http import driving
from tests.kit.store import Store
from tests.model.inline_database import SimulatedCrash
from tests.server.data_folder import Folder, record_of

_NUMBERS = itertools.count()


class Place(Folder):
    """A server's data folder, and servers that start with it one after the other."""

    @asynccontextmanager
    async def started(
        self, *, new_database: bool = False, **table: Any
    ) -> AsyncIterator[tuple[Store, data_folder.RecordKeeper]]:
        """What a server opens first."""
        read = ServerTable(data_dir=self.path, **table)
        async with AsyncExitStack() as stack:
            data_folder.lock_folder(read, stack)
            how = read, SimClock(), stack
            _, database, _, keeper = await data_folder.open_data(*how, new_database=new_database)
            yield Store(database, []), keeper

    async def some(self, jobs: Store, count: int = 1) -> list[int]:
        """So many jobs with bundles of their own."""
        return [(await self.add(jobs, f"user-{next(_NUMBERS)}")).id for _ in range(count)]

    async def start(self, jobs: int = 0, **how: Any) -> list[int]:
        """And upload so many."""
        async with self.started(**how) as (store, _):
            return await self.some(store, jobs)

    def files(self, below: str = "") -> set[str]:
        """All stored files."""
        pages = [page for kind in FileKind for page in stored_names(self.path / below, kind)]
        return {name for page in pages for name in page}

    def files_aside(self) -> set[str]:
        return {name for day in (self.path / UNKNOWN).glob("*") for name in self.files(str(day))}

    def keep_database(self, name: str = "older") -> Path:
        """A copy of it, made while no server runs."""
        return Path(shutil.copy(self.database_path, self.path.parent / name))

    def replace_database(self, copy: Path | None = None) -> None:
        """By this one; None: by nothing."""
        for path in self.database_path.parent.glob(f"{self.database_path.name}*"):
            path.unlink()
        if copy is not None:
            self.database_path.parent.mkdir(exist_ok=True)
            shutil.copy(copy, self.database_path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place" / "data")


async def on_host(place: Place, *words: str, **table: Any) -> tuple[int, Any]:
    """The exit code of a command that looks at the folder of the settings, and its document."""
    file = place.path.parent / "server.toml"
    lines = {"data_dir": place.path, "port": 0, **table}.items()
    file.write_text("[server]\n" + "".join(f"{key} = '{value}'\n" for key, value in lines))
    given = [*words, "--config", str(file)]
    done = await asyncio.to_thread(CliRunner().invoke, program, given)
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr


async def abouts_of(place: Place, **table: Any) -> dict[str, Any]:
    """What the doctor of the host finds."""
    _, found = await on_host(place, "doctor", **table)
    return {one["about"]: one for one in found["findings"]}


WRONG = {
    "missing": "3 files of server .* is missing .is its disk mounted.*--new-database begins afresh",
    "empty": "3 files of server .* is empty .is its disk mounted.*--new-database begins afresh",
    "another": "is that of server [0-9a-f]{8} ",
    "nobodys": "knows none of them",
    "away": "holds no files, and .* refers to some .is the folder's disk mounted.*: mount it, ",
    "unreadable": "server.json cannot be read",
    "older": "is older: .* A start makes another server of this one: agents end what they hold",
}
"""What happened to the database or the folder -> what is said of it."""


@each("how, words", WRONG.items())
async def test_a_wrong_database_is_refused_by_all_in_one_sentence_and_loses_nothing(
    tmp_path, how, words
):
    place = Place(tmp_path / how / "data")
    place.database_path = place.path.parent / "kept" / "kept.sqlite"
    table: dict[str, Any] = {"db_path": place.database_path}
    await place.start(1, **table)
    older = place.keep_database()
    await place.start(2, **table)
    right, files, away = place.keep_database("right"), place.files(), place.path.parent / "away"
    record, fresh = (place.path / RECORD).read_bytes(), Place(tmp_path / f"{how}-fresh" / "data")
    await fresh.start(1 if how == "another" else 0)
    if how == "away":
        place.path.rename(away)
        place.path.mkdir()
    elif how == "missing":
        shutil.rmtree(place.database_path.parent)
    elif how == "empty":
        place.replace_database()
        place.database_path.touch()
    elif how == "unreadable":
        (place.path / RECORD).write_text("{")
    else:
        place.replace_database(older if how == "older" else fresh.keep_database("fresh"))
    if how == "nobodys":  # in a folder of the version before
        (place.path / RECORD).unlink()
    wrong = look(place.path, place.database_path)
    assert wrong is not None
    assert re.search(words, str(wrong))
    for _ in range(0 if how == "older" else 2):  # the first refusal changed nothing
        with pytest.raises(WrongDatabase, match=f"^{re.escape(str(wrong))}$"):
            await place.start(**table)
    abouts = await abouts_of(place, **table)
    said = abouts["folder and database"]
    assert (said["level"], said["text"], said["hint"]) == ("problem", wrong.text, wrong.advice)
    assert "database" not in abouts  # nothing good is said of the wrong one
    code, found = await on_host(place, "check", **table)
    assert (code, str(wrong) in found["warnings"]) == (0, True)
    code, found = await on_host(place, "admin", "verify", "--json", **table)
    if how in ("missing", "empty"):
        assert (code, str(wrong) in found) == (74, True)
        made = place.database_path.parent.exists()
        assert made == (how == "empty"), "made on a disk that hides it"
    else:
        first, *others = found["findings"]
        assert (code, first["kind"], first["message"]) == (1, "wrong_database", str(wrong))
        assert not [one for one in others if "after a day" in one["message"]]
        code, said = await on_host(place, "admin", "verify", "--repair", **table)
        assert (code, "nothing was repaired" in said) == (74, True)
    if how == "away":
        assert place.files() == set()
        shutil.rmtree(place.path)
        away.rename(place.path)
    assert place.files() == files
    if how != "nobodys":  # else it takes the id of its database
        (place.path / RECORD).write_bytes(record)
    place.replace_database(right)
    server = place.marks().server
    async with place.started(**table) as (jobs, _):
        assert (await jobs.get(2)).state is JobState.QUEUED
    assert (record_of(place.path).server, place.files()) == (server, files)


async def test_a_new_database_begins_afresh_as_another_server(place, tmp_path):
    await place.start(3)
    files, was = place.files(), record_of(place.path)
    place.replace_database()
    (new,) = await place.start(1, new_database=True)
    assert new >= 1_000_000 + was.last_job
    assert (place.files_aside(), len(place.files())) == (files, 1)
    marks, record = place.marks(), record_of(place.path)
    assert marks.server == record.server != was.server
    assert marks.former == (was.server,)
    assert (await place.start(1))[0] == new + 1  # from now on it is the folder's
    async with place.started() as (jobs, _):  # with a clock that is ahead of the next one's
        await jobs.sql(f"UPDATE jobs SET attempt = id - {new}, queued_at = 9e15, not_before = 9e15")
    async with place.started() as (jobs, _):
        assert [(await jobs.get(one)).not_before for one in (new, new + 1)] == [9e15, 0]

    other = Place(tmp_path / "other" / "data")
    await other.start(1)
    before = other.marks()
    await place.start(1, db_path=other.database_path, new_database=True)
    assert other.marks().former[-1] == before.server
    assert len(place.files_aside()) == 5


async def test_an_older_database_goes_on_as_another_server_and_moves_the_rest_aside(place):
    await place.start(1)
    known, older = place.files(), place.keep_database()
    await place.start(2)
    files, was = place.files(), place.marks()
    place.replace_database(older)
    assert "files" not in await abouts_of(place)
    with structlog.testing.capture_logs() as logs:
        async with driving(place.path.parent, FakeOrchestrator(), gone=True) as client:
            (logged,) = [one for one in logs if one["event"] == "server.became_another"]
            assert (logged["files"], logged["former"]) == (2, [was.server])
            assert (await client.job(1, until="Queued"))["status"] == "Queued"
            large = {"run.sh": b"true", "large": bytes(ROW_BYTES)}
            assert await client.upload(large) > 1_000_000 + was.last_job
    assert place.files_aside() == files - known
    found = (await abouts_of(place))["files"]
    assert (found["level"], str(place.path / UNKNOWN) in found["text"]) == ("warning", True)
    assert "somebody misses them" in found["hint"]
    assert known < place.files()
    assert place.marks().former == (was.server,)
    servers = [was.server, place.marks().server]
    await place.start()
    assert place.marks().server == servers[-1]  # once
    for _ in range(2):  # a copy from before it became another server is an older one too
        await place.start(1)
        before, aside = place.files(), place.files_aside()
        place.replace_database(older)
        await place.start()
        assert place.files() | place.files_aside() == before | aside
        marks = place.marks()
        assert set(marks.former) == set(servers), "agents end what they hold for each of them"
        assert record_of(place.path) == marks
        servers.append(marks.server)


async def test_an_older_copy_is_known_after_a_kill_by_its_jobs_or_the_count_of_starts(tmp_path):
    for how in ("jobs", "starts"):
        place = Place(tmp_path / how / "data")
        older = place.path.parent / "older"
        if how == "starts":  # it is killed before the record is written again
            await place.start(1)
            place.keep_database(older.name)
        async with place.started() as (jobs, keeper):
            if how == "jobs":  # a copy made while it runs, as by ``cp``
                await place.some(jobs)
                with closing(sqlite3.connect(place.database_path)) as live:
                    live.execute("VACUUM INTO ?", (str(older),))
                await place.some(jobs)
                await keeper.run_once()  # as its loop does each minute
            record = (place.path / RECORD).read_bytes()
            if how == "starts":
                await place.some(jobs)
        (place.path / RECORD).write_bytes(record)
        files = place.files()
        place.replace_database(older)
        await place.start()
        assert len(place.files_aside()) == 1, how
        assert place.files() | place.files_aside() == files, how


DISKS = [(name, "tmpfs") for name in (*FileKind, "staging", UNKNOWN)]


@each("name, disk", [*DISKS, ("bundles", "bind")])
async def test_a_part_of_the_folder_on_another_file_system_is_named_before_anything_is_changed(
    tmp_path, name, disk
):
    """Files are moved there by a rename. One disk that is mounted twice is two, as volumes are."""
    place = Place(tmp_path / f"{name}-{disk}" / "data")
    await place.start(1)
    older = place.keep_database()
    await place.start(1)
    place.replace_database(older)
    before = (place.path / RECORD).read_bytes(), place.database_path.read_bytes()
    how = ("-t", "tmpfs", "none") if disk == "tmpfs" else ("--bind", str(place.path.parent))
    with mounted(place.path / name, *how):
        for _ in range(2):
            with pytest.raises(OSError, match="another file system") as refusal:
                await place.start()
            assert refusal.value.filename == str(place.path / name)
        assert ((place.path / RECORD).read_bytes(), place.database_path.read_bytes()) == before
    await place.start(1)


STEPS = itertools.product(["move", "count", "record", "renamed"], [False, True])


@each("step, older", [*STEPS, ("full", False)])
async def test_a_killed_start_or_a_full_disk_makes_no_database_older_and_loses_nothing(
    tmp_path, monkeypatch, step, older
):
    place = Place(tmp_path / f"{step}-{older}" / "data")
    await place.start(1)
    copy = place.keep_database()
    await place.start(1)
    files, was = place.files(), place.marks()
    if older:
        place.replace_database(copy)
    write = data_folder.write_record

    def dies(*given):
        if step == "full":
            raise OSError(28, "No space left on device")
        if step == "renamed":
            write(*given)
        raise SimulatedCrash

    where = {"move": "server.store.data_folder.move_aside", "count": "server.store.identity.begin"}
    with monkeypatch.context() as patched:
        patched.setattr(where.get(step, "server.store.data_folder.write_record"), dies)
        for _ in range(3 if older or step != "move" else 0):
            with nullcontext() if step == "full" else pytest.raises(SimulatedCrash):
                await place.start()
    await place.start()
    assert place.files() | place.files_aside() == files
    assert len(place.files()) == (1 if older else 2)
    assert (place.marks().server == was.server) is not older
    assert was.server in (place.marks().server, *place.marks().former)
    marks = place.marks()
    await place.start()
    assert place.marks().server == marks.server


# -- the doctor


def test_a_folder_is_ones_own_has_room_and_is_there_or_can_be_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found = {one.about: one for one in doctor.of_folder(tmp_path, 0)}
    levels = {about: one.level for about, one in found.items()}
    assert levels == dict.fromkeys(("folder", "filesystem", "disk"), "ok")
    tmp_path.chmod(0o777)
    found = {one.about: one for one in doctor.of_folder(tmp_path, 1 << 60)}
    assert (found["disk"].level, found["disk"].exit_code) == ("problem", 75)
    assert found["folder"].hint == f"chmod go-w {tmp_path}"
    (missing,) = doctor.of_folder(tmp_path / "data", 0)
    assert missing.level == "warning"
    assert "-o USER" in str(missing.hint)  # as root, it would make a folder of root
    (tmp_path / "file").write_text("")
    (wrong,) = doctor.of_folder(tmp_path / "file" / "data", 0)
    assert (wrong.level, wrong.exit_code) == ("problem", 73)


NORTH = {"status": "ok", "agent": "north"}


@each(
    "health, date, said",
    [
        (NORTH, 0, "it answers"),
        (NORTH, -60, "its clock and this one differ by 60 s"),
        (NORTH, 60, "its clock and this one differ by 60 s"),
        (NORTH, "yesterday", "it answers"),
        (NORTH, "Mon, 29 Nov 9999999 10:00:00 +9999999999", "it answers"),
        (NORTH | {"version": 3}, 0, "is no Ferryman agent"),
        ([], 0, "is no Ferryman agent"),
    ],
)
async def test_an_agent_whose_answers_are_wrong_is_named(tmp_path, health, date, said) -> None:
    at = date if isinstance(date, str) else formatdate(1_000_000 + date, usegmt=True)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(health, headers={"Date": at})

    app = web.Application()
    app.router.add_get("/{path}", answer)
    async with listening(app) as port:
        agents = {"north": {"url": f"http://127.0.0.1:{port}"}}
        given = {"server": {"data_dir": tmp_path}, "agents": agents}
        settings = ServerSettings.model_validate(given)
        clock = SimClock(1_000_000 * SECOND)
        found = await asyncio.to_thread(lambda: [*doctor.examine(settings, None, clock)])
    assert any(said in one.text for one in found if one.about == "agent north"), found


def test_a_port_that_another_program_has_is_a_problem() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert doctor.of_port("127.0.0.1", port, None).exit_code == 69
        assert doctor.of_port("127.0.0.1", port, "7").level == "ok"
    assert doctor.of_port("127.0.0.1", 0, None).level == "ok"
    assert doctor.of_port("127.0.0.1", 0, "7").level == "warning"


OK = [(0o640, []), (0o640, ["ferryman"]), (0o600, ["ann"])]
OPEN = [(0o640, ["ferryman", "ann"]), (0o640, ["ann"]), (0o604, [])]


@each("how, level", [*((how, "ok") for how in OK), *((how, "warning") for how in OPEN)])
def test_a_secret_may_be_read_by_the_program_and_its_group_alone(tmp_path, monkeypatch, how, level):
    """As the package has it: root's file, with the group of the server's user."""
    file, (mode, members) = tmp_path / "tokens", how
    file.write_text("x")
    file.chmod(mode)
    nobody_elses = grp.struct_group(("ferryman", "x", file.stat().st_gid, members))
    monkeypatch.setattr(grp, "getgrgid", lambda _: nobody_elses)
    found = doctor.of_secrets([file, None, tmp_path / "missing"], tmp_path)
    assert [one.level for one in found] == [level, "problem"]


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: advice about files of root is not proved")
@each("owner", [0, 4242])
def test_what_the_doctor_advises_leaves_a_secret_readable_for_the_program(tmp_path, owner):
    data, file = tmp_path / f"of-{owner}", tmp_path / f"tokens-of-{owner}"
    data.mkdir()
    os.chown(data, 4242, 4343)
    file.write_text("x")
    os.chown(file, owner, 0)
    file.chmod(0o644)
    (found,) = doctor.of_secrets([file], data)
    command = str(found.hint).partition(" (")[0].replace("GROUP", "4343")
    subprocess.run(["sh", "-c", command], check=True)
    about = file.stat()
    owns, in_group = about.st_uid == 4242, about.st_gid == 4343
    assert (owns and about.st_mode & 0o400) or (in_group and about.st_mode & 0o040), command
    assert [one.level for one in doctor.of_secrets([file], data)] == ["ok"]


def test_a_certificate_is_looked_at_for_its_end(tmp_path: Path) -> None:
    certificate = authority(tmp_path, "ca")
    now = RealClock().now()
    assert [one.level for one in doctor.of_certificate(certificate.cert, SimClock(now))] == ["ok"]
    later = SimClock(now + 400 * 365 * 86_400 * SECOND)
    (expired,) = doctor.of_certificate(certificate.cert, later)
    assert (expired.level, expired.exit_code) == ("problem", 77)
    (tmp_path / "none.pem").write_text("nothing")
    (none,) = doctor.of_certificate(tmp_path / "none.pem", SimClock(now))
    assert none.level == "problem"


def test_settings_that_this_user_may_not_read_name_who_may(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[agent]\n")
    file.chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    try:
        with pytest.raises(SettingsError, match=r"Permission denied: read it as root, or as the p"):
            load(file, {})
    finally:
        os.seteuid(before)
