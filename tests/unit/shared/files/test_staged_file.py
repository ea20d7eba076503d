"""Files that are written once: small, large, past the page cache or not, on a disk that is full."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from shared.files.staged_file import BLOCK, DIRECT_FROM, StagedFile


def content(size: int) -> bytes:
    """No two pages of it are alike."""
    return b"".join(b"%015d\n" % at for at in range(0, size, 16))[:size]


def written(path, data: bytes, chunk: int) -> StagedFile:
    file = StagedFile(path)
    for at in range(0, len(data), chunk):
        file.write(data[at : at + chunk])
    return file


@pytest.fixture
def refuse_direct(monkeypatch):
    """Let direct writes be refused, or end early; those that were tried."""
    tried = []
    real = os.pwrite

    def install(answer):
        def pwrite(fd, data, at):
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                tried.append(at)
                if (found := answer(fd, data, at, real)) is not None:
                    return found
            return real(fd, data, at)

        monkeypatch.setattr(os, "pwrite", pwrite)
        return tried

    return install


@pytest.mark.parametrize("size", [0, 1, 100_000, 200_000, BLOCK + 1])
@pytest.mark.parametrize("chunk", [777, 70_000, 3 * BLOCK + 5])
def test_what_is_written_is_there(tmp_path, size, chunk):
    file = written(tmp_path / "f", content(size), chunk)
    assert file.size == size
    file.sync()
    assert (tmp_path / "f").read_bytes() == content(size)
    file.close()
    file.close()


@pytest.mark.parametrize("chunk", [100_003, 3 * BLOCK + 5])
@pytest.mark.parametrize("more", [0, 1, BLOCK, 5 * BLOCK + 12_345])
def test_so_is_what_bypassed_the_page_cache(tmp_path, chunk, more):
    data = bytearray(content(DIRECT_FROM + 100 + more))
    file = StagedFile(tmp_path / "f")
    for at in range(0, len(data), chunk):
        file.write(data[at : at + chunk])
        place = at * 7_919 % max(1, file.size - 20)
        mark = b"%020d" % at
        if place + 20 <= file.size:
            file.patch(place, mark)
            data[place : place + 20] = mark
    file.sync()
    file.close()
    assert (tmp_path / "f").read_bytes() == data


def test_a_small_file_is_one_write(tmp_path, monkeypatch):
    writes: list[int] = []
    real = os.pwrite

    def pwrite(fd, data, at):
        writes.append(at)
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    file = written(tmp_path / "f", content(30_000), 5_000)
    file.patch(30, b"patched")
    file.sync()
    file.close()
    assert writes == [0]
    assert (tmp_path / "f").read_bytes()[30:37] == b"patched"


def test_a_file_system_that_cannot_bypass_the_cache_is_written_through_it(tmp_path, refuse_direct):
    def invalid(fd, data, at, real):
        if len(tried) == 1:
            raise OSError(errno.EINVAL, "not here")

    tried = refuse_direct(invalid)
    data = content(DIRECT_FROM + 4 * BLOCK)
    file = written(tmp_path / "f", data, 100_000)
    file.sync()
    file.close()
    assert tried
    assert (tmp_path / "f").read_bytes() == data


def test_a_block_that_is_written_in_part_is_completed(tmp_path, refuse_direct):
    def part(fd, data, at, real):
        return real(fd, memoryview(data)[:4096], at) if len(tried) == 1 else None

    tried = refuse_direct(part)
    data = content(DIRECT_FROM + 4 * BLOCK)
    file = written(tmp_path / "f", data, BLOCK)
    file.sync()
    file.close()
    assert tried
    assert (tmp_path / "f").read_bytes() == data


def test_a_disk_that_fills_up_meanwhile_is_an_error_before_the_file_is_whole(
    tmp_path, refuse_direct
):
    def full(fd, data, at, real):
        raise OSError(errno.ENOSPC, "full")

    refuse_direct(full)
    file = StagedFile(tmp_path / "f")
    with pytest.raises(OSError, match="full"):  # noqa: PT012 - the write after it, or the sync
        for _ in range(20):
            file.write(bytes(BLOCK))
        file.sync()
    file.close()


def test_space_is_asked_for_before_each_write_and_after_the_one_before(tmp_path, monkeypatch):
    log: list[tuple[str, int]] = []
    real = os.pwrite

    def pwrite(fd, data, at):
        count = real(fd, data, at)
        log.append(("written", count))
        return count

    monkeypatch.setattr(os, "pwrite", pwrite)
    file = StagedFile(tmp_path / "f", lambda count: log.append(("asked", count)))
    data = content(DIRECT_FROM + 4 * BLOCK + 9)
    for at in range(0, len(data), 300_000):
        file.write(data[at : at + 300_000])
    file.sync()
    file.close()
    pairs = list(zip(log[::2], log[1::2], strict=True))
    assert all(asked == ("asked", written[1]) for asked, written in pairs)
    assert sum(written for _, (_, written) in pairs) == len(data)


def test_nothing_is_left_open(tmp_path):
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    written(tmp_path / "f", content(DIRECT_FROM + 2 * BLOCK), BLOCK).close()
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
