"""What only the folder promises: durability step by step, modes, no file outside of it, and some of
the disk that stays free.
"""

import errno
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.jobs import FileKind
from server.storage import scratch as scratch_module
from server.storage.folder import Storage, stored_path
from server.storage.scratch import NoSpace, Scratch, ScratchFile

R = FileKind.RESULT


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    numbers = iter(range(1_000))
    return Scratch(tmp_path / "staging", lambda: f"{next(numbers):032x}")


@pytest.fixture
def storage(tmp_path: Path, scratch: Scratch) -> Storage:
    numbers = iter(range(1_000))
    return Storage(tmp_path, scratch, lambda: f"{next(numbers):032x}")


async def put(storage: Storage, content: bytes | ScratchFile = b"content") -> str:
    async with storage.pending(R) as pending:
        name = await pending.put(content)
        pending.commit()
    return name


def open_in(folder: Path) -> list[str]:
    """Files below the folder that this process has open."""
    found = list[Path]()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was that of this list
            found.append(one.readlink())
    return [path.name for path in found if folder in path.parents]


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
        await put(storage, file if of_a_file else b"content")
    assert synced == ["results/7", "staging/32" if of_a_file else "results/32", "results/2"]
    assert list((tmp_path / "staging").iterdir()) == []


async def test_a_scratch_file_is_moved_not_copied(tmp_path, storage, scratch):
    with scratch.file() as file:
        file.path.write_bytes(b"content")
        inode = file.path.stat().st_ino
        async with storage.pending(R) as pending:
            name = await pending.put(file)
            pending.commit()
        assert not file.path.exists()
    assert stored_path(tmp_path, R, name).stat().st_ino == inode


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


async def test_a_file_is_closed_once_it_was_read_and_a_small_one_before(tmp_path, storage):
    """An agent may take minutes over what is sent to it, and descriptors are few."""
    for size in (0, 10, 3 << 20):
        name = await put(storage, b"x" * size)
        async with storage.open(R, name) as stream:
            assert open_in(tmp_path) == ([name] if size > 10 else [])
            async for _ in stream:
                break
        assert open_in(tmp_path) == []


async def test_bytes_that_cannot_be_synced_leave_nothing(tmp_path, storage, monkeypatch):
    await put(storage)  # its folder is there

    def refused(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = await storage.list(R)
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="Input/output"):
        await put(storage)
    assert await storage.list(R) == before
    assert list((tmp_path / "staging").iterdir()) == []


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
            continue
        pending[number] = count
    for left in pending:
        disk.write(left)
    assert disk.least >= MIN_FREE
    for one in writers:
        one.release()
    disk.measure()
    assert disk.available() == disk.free_bytes() - MIN_FREE


def test_what_is_granted_to_one_is_not_there_for_another_until_it_ends():
    disk = Disk(MIN_FREE + 100)
    first, second = disk.file(), disk.file()
    first.reserve(60)
    with pytest.raises(NoSpace) as caught:
        second.reserve(60)
    assert caught.value.errno == errno.ENOSPC
    second.reserve(30)
    assert disk.available() == 10
    first.release()
    second.release()
    disk.measure()
    assert disk.available() == 100, "nothing was written"


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
