"""What a storage promises: put and open, lists, deletion, orphans, crashes, a full disk; and what
only the folder does: durability step by step, modes, no file outside of it, space that stays free.
"""

import asyncio
import errno
import hashlib
import itertools
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.agents import answers
from server.domain.jobs import FileKind
from server.storage import scratch as scratch_module
from server.storage.folder import InUse, Storage, stored_path
from server.storage.scratch import NoSpace, Scratch, ScratchFile
from shared.clock import RealClock
from tests.kit.each import each
from tests.kit.store import read
from tests.kit.warm import open_files

B, R = FileKind.BUNDLE, FileKind.RESULT
LARGE = hashlib.shake_128(b"large").digest(2_500_000)


class Place:
    """Where stored files outlive the run that stored them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self.first = self.run()

    def new_name(self) -> str:
        return f"{next(self._numbers) * 0x123456789ABCDEF:032x}"[::-1][:32]

    def scratch(self) -> Scratch:
        return Scratch(self.folder / "staging", self.new_name)

    def run(self) -> Storage:
        """The storage as another run of the server sees it."""
        return Storage(self.folder, self.scratch(), self.new_name)

    @contextmanager
    def full(self, *, late: bool = False) -> Iterator[None]:
        """Meanwhile there is no space for anything; ``late``: the disk says so at the end."""
        refused = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        with mock.patch("os.fsync", refused), mock.patch("os.write", os.write if late else refused):
            yield


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.first


@pytest.fixture
def scratch(place: Place) -> Scratch:
    return place.scratch()


async def put(
    storage: Storage, content: bytes | ScratchFile = b"content", kind: FileKind = R
) -> str:
    """Store content that a row refers to; its name."""
    async with storage.pending(kind) as pending:
        name = await pending.put(content)
        pending.commit()
    return name


async def names(storage: Storage, kind: FileKind = FileKind.RESULT) -> list[str]:
    found: list[str] = []
    while page := await storage.list(kind, found[-1] if found else ""):
        found += page
    return found


def rows(*referred: str) -> InUse:
    async def in_use(asked: Sequence[str]) -> set[str]:
        return set(referred) & set(asked)

    return in_use


async def sweep(storage: Storage, in_use: InUse) -> int:
    """Delete the orphans among all results."""
    listed = await names(storage)
    return await storage.delete_orphans(FileKind.RESULT, listed, in_use)


# -- put and open


@each("whole", [b"", b"x", b"x" * 300_000, LARGE])
async def test_what_was_put_can_be_read(storage: Storage, whole: bytes) -> None:
    async with storage.pending(R) as pending:
        name = await pending.put(whole)
        assert await read(storage, R, name) == whole, "also before its row is written"
        pending.commit()
    async with storage.open(R, name) as stream:
        assert stream.size == len(whole)
    assert storage.path(R, name).read_bytes() == whole
    assert await read(storage, R, name) == whole  # reading changes nothing


async def test_files_that_are_stored_at_once_do_not_mix(storage: Storage) -> None:
    contents = [bytes([number]) * 50_000 * (number + 1) for number in range(30)]
    stored = await asyncio.gather(*(put(storage, content) for content in contents))
    found = await asyncio.gather(*(read(storage, R, name) for name in stored))
    assert found == contents
    assert await names(storage) == sorted(stored)


# -- lists


async def test_each_file_of_any_run_is_listed_once_and_in_order(place: Place) -> None:
    storage, other = place.first, place.run()
    for name in ("notes.txt", "aa/notes.txt", "aa/" + "b" * 32, "zz/" + "z" * 32):
        strange = place.folder / R / name
        strange.parent.mkdir(exist_ok=True)
        strange.write_bytes(b"?")
    stored = sorted([await put(one) for one in (storage, other) for _ in range(15)])
    assert await names(storage) == await names(other) == stored
    assert await names(storage, B) == []
    for after in (*stored, "", "8", "f" * 32):
        page = await storage.list(R, after)
        behind = [name for name in stored if name > after]
        assert page == behind[: len(page)]
        assert bool(page) == bool(behind)
    found = await storage.list(R)
    await storage.delete([(R, found[-1])])  # in between
    while more := await storage.list(R, found[-1]):
        found += more
    assert found == stored


# -- deletion


async def test_only_the_files_that_were_named_are_deleted(storage: Storage) -> None:
    bundle, first, second = await put(storage, kind=B), await put(storage), await put(storage)
    missing = "f" * 32
    for _ in range(2):  # what is not there can be deleted
        await storage.delete([(B, bundle), (R, first), (R, missing), (B, second)])
        with pytest.raises(FileNotFoundError):
            await read(storage, R, first)
        assert (await names(storage, B), await names(storage)) == ([], [second])
    assert await read(storage, R, second) == b"content"


async def test_a_file_that_is_deleted_can_be_read_to_its_end(storage: Storage) -> None:
    content = b"x" * 3_000_000
    name = await put(storage, content)
    async with storage.open(R, name) as stream:
        await storage.delete([(R, name)])
        assert b"".join([chunk async for chunk in stream]) == content


async def test_what_is_not_committed_is_deleted_at_the_end_or_an_error(storage: Storage) -> None:
    kept: list[str] = []

    async def store(problem: Exception | None = None) -> None:
        async with storage.pending(R) as pending:
            kept.append(await pending.put(b"1"))
            pending.commit()
            await pending.put(b"2")
            if problem is not None:
                raise problem

    await store()
    with pytest.raises(ValueError, match="no row"):
        await store(ValueError("no row"))
    assert await names(storage) == sorted(kept)


# -- orphans


async def test_a_pending_file_is_no_orphan(place: Place) -> None:
    async with place.first.pending(R) as pending:
        name = await pending.put(b"x")
        assert await sweep(place.first, rows()) == 0
        pending.commit()
    assert await sweep(place.first, rows(name)) == 0
    assert await names(place.first) == [name]
    assert await sweep(place.first, rows()) == 1


async def test_a_row_that_is_written_during_the_sweep_counts(storage: Storage) -> None:
    referred = set[str]()

    async with storage.pending(R) as pending:
        name = await pending.put(b"x")
        listed = await names(storage)

        async def in_use(asked: Sequence[str]) -> set[str]:
            referred.add(name)  # meanwhile the row is written
            pending.commit()
            return referred & set(asked)

        assert await storage.delete_orphans(R, listed, in_use) == 0
    assert await names(storage) == [name]


async def test_if_the_rows_cannot_be_read_nothing_is_deleted(storage: Storage) -> None:
    name = await put(storage)

    async def fails(_: Sequence[str]) -> set[str]:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        await sweep(storage, fails)
    assert await names(storage) == [name]


# -- crashes


async def test_a_cancelled_write_may_still_come_so_its_file_stays(storage: Storage) -> None:
    async def accept(stored: asyncio.Event) -> None:
        async with storage.pending(R) as pending:
            await pending.put(b"x")
            stored.set()
            await asyncio.Event().wait()  # the database is about to write the row

    stored = asyncio.Event()
    task = asyncio.create_task(accept(stored))
    await stored.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await sweep(storage, rows()) == 0
    assert len(await names(storage)) == 1


async def test_scratch_files_go_with_their_run(place: Place) -> None:
    with place.scratch().file() as dead:
        dead.path.write_bytes(b"half")
        archive = dead.path.with_name(f"{dead.path.name}.archive")
        archive.write_bytes(b"half an archive")
        assert place.scratch().clear() == 2
        assert (dead.path.exists(), archive.exists()) == (False, False)


async def test_a_scratch_file_of_a_cancelled_caller_is_not_left(tmp_path, monkeypatch):
    begun, go_on, real = threading.Event(), threading.Event(), Path.open

    def slow(path: Path, *how: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return real(path, *how, **more)

    async def store(scratch: Scratch) -> None:
        unread = cast(aiohttp.ClientResponse, None)
        with scratch.file() as file:
            await answers.store(unread, file, RealClock())

    monkeypatch.setattr(Path, "open", slow)
    storing = asyncio.create_task(store(Scratch(tmp_path, lambda: "0" * 32)))
    await asyncio.to_thread(begun.wait, 30)
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(tmp_path.iterdir()) == []


# -- a full disk


async def test_what_does_not_fit_is_refused_and_leaves_nothing_and_later_there_is_room(place):
    kept = await put(place.first, b"kept")
    with place.scratch().file() as file:
        file.path.write_bytes(b"x")
        for content, late in ((b"x" * 100_000, False), (b"x", True), (file, True)):
            with place.full(late=late), pytest.raises(OSError, match="No space left") as caught:
                async with place.first.pending(R) as pending:
                    await pending.put(content)
            assert caught.value.errno == errno.ENOSPC
            assert await names(place.first) == [kept]
    assert await read(place.first, R, kept) == b"kept"
    assert list((place.folder / "staging").iterdir()) == []
    with place.full():
        await place.first.delete([(R, kept)])
    assert await names(place.first) == []
    assert await read(place.first, R, await put(place.first, b"again")) == b"again"


# -- what only the folder promises


@pytest.mark.parametrize("of_a_file", [False, True])
async def test_content_then_name_are_durable(tmp_path, storage, scratch, monkeypatch, of_a_file):
    """Both before their name is given to anybody."""
    synced: list[str] = []
    real = os.fsync

    def noted(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink().relative_to(tmp_path)
        synced.append(f"{path.parts[0]}/{len(path.name)}")
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with scratch.file("f" * 32) as file:
        file.path.write_bytes(b"content")
        inode = file.path.stat().st_ino
        name = await put(storage, file if of_a_file else b"content")
        is_moved = stored_path(tmp_path, R, name).stat().st_ino == inode
        assert (is_moved, file.path.exists()) == (of_a_file, not of_a_file), "it is not copied"
    assert synced == ["results/7", "staging/32" if of_a_file else "results/32", "results/2"]
    assert list((tmp_path / "staging").iterdir()) == []


async def test_what_a_slow_disk_said_before_refuses_nothing(tmp_path, scratch, monkeypatch):
    """Whoever writes asks the disk for each piece, and may wait longer for its answer."""
    answer = threading.Event()

    def slow(_: Scratch) -> int:
        assert answer.wait(60), "nobody let the disk answer"
        return 1 << 30

    monkeypatch.setattr(Scratch, "free_bytes", lambda _: 0)
    scratch.measure()
    assert await scratch.too_full_for(1) == 0
    monkeypatch.setattr(Scratch, "free_bytes", slow)
    monkeypatch.setattr(scratch_module, "_PATIENCE_S", 0)
    try:
        assert await scratch.too_full_for(1) is None
    finally:
        answer.set()


async def test_folders_are_closed_to_others(tmp_path: Path, storage: Storage) -> None:
    name = await put(storage)
    folder = stored_path(tmp_path, R, name).parent
    for path in (folder, folder.parent, tmp_path / "bundles", tmp_path / "staging"):
        assert path.stat().st_mode & 0o777 == 0o700


async def test_what_a_link_leads_to_is_not_listed(tmp_path: Path, storage: Storage) -> None:
    """Nothing outside the folder is deleted as an orphan."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("ab" + "0" * 30)).write_bytes(b"mine")
    (tmp_path / "results" / "ab").symlink_to(outside)
    assert await storage.list(R) == []


async def test_a_file_is_closed_once_it_was_read_and_a_small_one_before(storage):
    """An agent may take minutes over what is sent to it, and descriptors are few."""
    for size in (0, 10, 3 << 20):
        name = await put(storage, b"x" * size)
        before = open_files()
        async with storage.open(R, name) as stream:
            assert open_files() == before + (size > 10)
            async for _ in stream:
                break
        assert open_files() == before


# -- a part of the disk stays free

MIN_FREE = 1000


class Disk(Scratch):
    """A simulated disk: what was taken is written when its writer takes the next piece, or ends."""

    def __init__(self, size: int) -> None:
        self.size, self.used, self.least, self.asked = size, 0, size, 0
        super().__init__(Path(tempfile.gettempdir()), lambda: "nothing", MIN_FREE)

    def free_bytes(self) -> int:
        self.asked += 1
        return self.size - self.used

    def write(self, count: int) -> None:
        self.used += count
        self.least = min(self.least, self.free_bytes())


@given(
    st.integers(0, 60_000),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9000)), max_size=60),
)
def test_however_writers_take_turns_min_free_is_kept(size, turns):
    disk = Disk(MIN_FREE + size)
    writers = [disk.file() for _ in range(4)]
    pending = [0] * 4
    for number, count in turns:
        disk.write(pending[number])  # the piece before is on the disk
        pending[number] = 0
        try:
            writers[number].reserve(count)
        except NoSpace:
            assert disk.available() < count, "what there is may be used"
            continue
        pending[number] = count
    for left in pending:
        disk.write(left)
    assert disk.least >= MIN_FREE
    for one in writers:
        one.release()
    disk.measure()
    assert disk.available() == disk.free_bytes() - MIN_FREE


def test_a_small_file_holds_little_and_a_large_one_asks_the_disk_now_and_then_only():
    disk = Disk(1 << 50)
    small, before = disk.file(), disk.available()
    small.reserve(500)
    small.reserve(500)
    assert before - disk.available() <= 2000
    asked, large = disk.asked, disk.file()
    for _ in range(4096):  # 256 MiB
        large.reserve(64 << 10)
    assert disk.asked - asked < 100
