"""Files that are written once, renamed when they are durable, opened in threads, read in part; and
folders that one process has.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from shared.files import durable, staged_file
from shared.files.durable import FolderInUse, FolderLock
from shared.files.opened import opened
from shared.files.staged_file import BLOCK, StagedFile
from tests.kit.each import each
from tests.kit.warm import open_files

PWRITE = os.pwrite
DIRECT_FROM = 2 * BLOCK
"""Here; in the product 16 blocks."""


@pytest.fixture(autouse=True)
def _soon_direct(monkeypatch):
    monkeypatch.setattr(staged_file, "DIRECT_FROM", DIRECT_FROM)


def content(size: int) -> bytes:
    """No two pages of it are alike."""
    return b"".join(b"%015d\n" % at for at in range(0, size, 16))[:size]


def written(path, data: bytes, chunk: int, *reserve) -> None:
    file = StagedFile(path, *reserve)
    for at in range(0, len(data), chunk):
        file.write(data[at : at + chunk])
    assert file.size == len(data)
    file.sync()
    file.close()
    file.close()


@pytest.fixture
def writes(monkeypatch):
    """Answers direct writes; gives all of them: (whether past the cache, place, bytes)."""
    seen = []

    def install(answer=None):
        def pwrite(fd, data, at):
            direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
            seen.append((direct, at, len(data)))
            if direct and answer is not None and (found := answer(fd, data, at)) is not None:
                return found
            return PWRITE(fd, data, at)

        monkeypatch.setattr(os, "pwrite", pwrite)
        return seen

    return install


@each("chunk", [777, 70_000, 100_003, 3 * BLOCK + 5])
@each("size", [0, 1, 100_000, BLOCK + 1, DIRECT_FROM + 100, DIRECT_FROM + 5 * BLOCK + 12_345])
def test_what_is_written_is_there_and_so_is_what_is_changed_meanwhile(tmp_path, size, chunk):
    data = bytearray(content(size))
    file = StagedFile(tmp_path / "f")
    for at in range(0, size, chunk):
        file.write(data[at : at + chunk])
        place = at * 7_919 % max(1, file.size - 20)
        if place + 20 <= file.size:
            data[place : place + 20] = b"%020d" % at
            file.patch(place, b"%020d" % at)
    assert file.size == size
    file.sync()
    file.close()
    assert (tmp_path / "f").read_bytes() == data
    (tmp_path / "f").unlink()


@pytest.mark.parametrize("way", ["it cannot bypass the cache", "it takes a part"])
def test_a_large_file_is_whole_whatever_the_file_system_does(tmp_path, writes, way):
    def once(fd, data, at):
        if sum(direct for direct, _, _ in seen) > 1:
            return None
        if way == "it takes a part":
            return PWRITE(fd, memoryview(data)[:4096], at)
        raise OSError(errno.EINVAL, "not here")

    seen = writes(once)
    data = content(DIRECT_FROM + 4 * BLOCK)
    written(tmp_path / "f", data, 100_000)
    assert any(direct for direct, _, _ in seen)
    assert (tmp_path / "f").read_bytes() == data


def test_a_disk_that_fills_up_is_an_error_before_the_file_is_whole(tmp_path, writes):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    writes(full)
    with pytest.raises(OSError, match="full"):
        written(tmp_path / "f", bytes(DIRECT_FROM + 4 * BLOCK), BLOCK)


def test_space_is_asked_for_before_each_write_and_nothing_is_left_open(tmp_path, writes):
    seen, asked = writes(), []
    before = open_files()
    data = content(DIRECT_FROM + 4 * BLOCK + 9)
    written(*(tmp_path / "f", data, 300_000), lambda count: asked.append((len(seen), count)))
    assert asked == [(number, length) for number, (_, _, length) in enumerate(seen)]
    assert sum(length for _, length in asked) == len(data)
    assert open_files() == before


def test_the_content_is_synced_before_the_name_and_then_the_folder(tmp_path, monkeypatch):
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(fd: int) -> None:
        calls.append("fsync " + Path(f"/proc/self/fd/{fd}").readlink().name)
        real_fsync(fd)

    def replace(self: Path, target: Path) -> Path:
        calls.append(f"rename {self.name} {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    (tmp_path / "kept").mkdir()
    for synced in (False, True):
        (tmp_path / "tmp").write_text("x")
        durable.replace(tmp_path / "tmp", tmp_path / "kept" / "final", synced=synced)
        assert calls[synced:] == ["fsync tmp", "rename tmp final", "fsync kept"][synced:]
        assert (tmp_path / "kept" / "final").read_text() == "x"
        assert not (tmp_path / "tmp").exists()
        calls[:] = [""]


def test_a_name_that_is_not_durable_is_taken_back_and_removing_says_nothing(tmp_path, monkeypatch):
    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "broken disk")

    (tmp_path / "tmp").write_text("x")
    monkeypatch.setattr(durable, "fsync_folder", broken)
    with pytest.raises(OSError, match="broken disk"):
        durable.replace(tmp_path / "tmp", tmp_path / "final")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x").write_text("x")
    for path in (tmp_path / "x", tmp_path / "x", tmp_path):
        durable.remove_quietly(path)
    assert list(tmp_path.iterdir()) == []


HOLD = (
    "import sys; from pathlib import Path; from shared.files.durable import FolderLock; "
    "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)
WAIT = "import sys; print('held', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def program(*words: object, close_fds: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-c", *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, close_fds=close_fds) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"held\n"
        yield started
        started.kill()


def test_a_folder_is_held_until_its_process_is_killed_and_names_its_new_holder(tmp_path):
    with program(HOLD, tmp_path) as holder, pytest.raises(FolderInUse) as refused:
        FolderLock(tmp_path)
    assert f"{tmp_path} is in use" in str(refused.value)
    assert f"pid {holder.pid})" in str(refused.value)
    (tmp_path / "lock").write_text("123456789 and a longer text than a pid\n")
    for _ in range(2):
        lock = FolderLock(tmp_path)
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        with pytest.raises(FolderInUse, match="choose another data folder"):
            FolderLock(tmp_path)
        lock.close()


def test_a_program_that_is_started_does_not_inherit_the_lock(tmp_path):
    lock = FolderLock(tmp_path)
    with program(WAIT, close_fds=False):
        lock.close()
        FolderLock(tmp_path).close()


@pytest.mark.parametrize("loop_ends", [False, True])
def test_a_file_that_is_opened_for_somebody_who_has_gone_is_closed(tmp_path, loop_ends):
    files: list[IO[bytes]] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> IO[bytes]:
        begun.set()
        assert go_on.wait(30)
        files.append((tmp_path / "result").open("wb"))
        return files[0]

    async def main() -> None:
        storing = asyncio.create_task(opened(slow).__aenter__())
        last = asyncio.create_task(until_the_loop_ends())
        await asyncio.to_thread(begun.wait, 30)
        storing.cancel()
        await asyncio.wait([storing])
        assert not last.done()
        if not loop_ends:
            go_on.set()
            await asyncio.get_running_loop().shutdown_default_executor()
            assert files[0].closed

    async def until_the_loop_ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            go_on.set()

    asyncio.run(main())
    assert files[0].closed
