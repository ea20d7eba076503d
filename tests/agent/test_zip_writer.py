"""The ZIP writer: the bytes that it writes, and how other programs read them."""

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest
from isal import isal_zlib

from client_agent.collect import zip_writer
from client_agent.collect.zip_writer import ZipWriter
from shared.files.archives import zip_headers
from tests.agent.agent_packing import MIB
from tests.formats import desktop_zip
from tests.kit.cost import peak

WHEN = datetime(2026, 11, 21, 13, 14, 15, tzinfo=UTC)
GIB = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.zip"


def zeros(size: int) -> Iterator[bytes]:
    chunk = bytes(4 * MIB)
    for _ in range(size // len(chunk)):
        yield chunk
    yield chunk[: size % len(chunk)]


def test_other_programs_read_what_was_written(path: Path) -> None:
    big = os.urandom(MIB) + bytes(MIB)
    contents = {"é/big": big, "none": b"", "wide": b"short"}
    with ZipWriter(path) as out:
        out.add_folder("empty é", WHEN)
        out.add_file("é/big", WHEN, [big], len(big), executable=True)
        out.add_file("none", WHEN, [b""], 0)
        out.add_file("wide", WHEN, [b"short"], 5 * GIB)  # it got smaller
        out.finish()
    headers = desktop_zip.check(path)
    assert [(header.needed, header.wide) for header in headers[1:]] == [(20, 0), (20, 0), (45, 0)]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in contents} == contents
        assert {info.date_time for info in archive.infolist()} == {(2026, 11, 21, 13, 14, 14)}
        assert [info.flag_bits for info in archive.infolist()] == [0x800, 0x800, 0, 0]
    said = ""
    for tool in (["unzip", "-t"], ["zipinfo"]):
        if shutil.which(tool[0]) is None:
            pytest.skip(f"no {tool[0]}: that it reads our ZIPs is not proved")
        done = subprocess.run(
            [*tool, path], capture_output=True, text=True, env={"LANG": "C.UTF-8"}
        )
        said = done.stdout
        assert (done.returncode, done.stderr) == (0, ""), said
    for mode in ("drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--"):
        assert mode in said


@pytest.mark.parametrize("size", [3 * MIB, pytest.param(4 * GIB + 5, marks=pytest.mark.slow)])
def test_only_a_file_beyond_four_gib_has_zip64_sizes(path, size, monkeypatch) -> None:
    if size < 4 * GIB:  # as if so much were too large for 32 bits already
        monkeypatch.setattr(zip_writer, "MAX_32", 2 * MIB)
        monkeypatch.setattr(zip_headers, "MAX_32", 2 * MIB)
        monkeypatch.setattr(desktop_zip, "_FULL", 2 * MIB)
    with ZipWriter(path) as out:
        out.add_file("before", WHEN, [b"1"], 1)
        out.add_file("huge", WHEN, zeros(size), size)
        out.add_file("behind", WHEN, [b"2"], 1)
        out.finish()
    headers = desktop_zip.check(path)
    assert [(header.needed, header.wide) for header in headers] == [(20, 0), (45, 16), (20, 0)]
    assert headers[1].size == size
    with path.open("rb") as file:
        file.seek(headers[1].offset + 30 + len("huge") + 20)
        engine = isal_zlib.decompressobj(wbits=-15)
        assert sum(map(len, iter(lambda: engine.decompress(file.read(1 << 16)), b""))) == size
        assert engine.eof


def test_a_file_after_four_gib_has_a_zip64_offset(path: Path) -> None:
    with ZipWriter(path) as out:
        # a hole in place of files that take minutes to pack
        os.lseek(out._fd, 5 * GIB, os.SEEK_SET)
        out._position = out._written = 5 * GIB
        out.add_file("f", WHEN, [b"1"], 1)
        out.add_file("g", WHEN, [b"2" * MIB], MIB)
        size = out.finish()
    assert size == path.stat().st_size > 5 * GIB
    with zipfile.ZipFile(path) as archive:
        assert [(info.header_offset >= 5 * GIB) for info in archive.infolist()] == [True, True]
        assert [len(info.extra) for info in archive.infolist()] == [12, 12]
        assert archive.testzip() is None


@pytest.mark.parametrize(("count", "wide"), [(0xFFFE, False), (0xFFFF, True), (70_000, True)])
def test_many_entries_are_counted_in_64_bits(count: int, wide: bool) -> None:
    data = zip_headers.end_records(count, 100, 46 * count)
    assert data.startswith(b"PK\6\6") is wide
    if wide:
        assert zip_headers.END_64.unpack_from(data)[6:] == (count, count, 46 * count, 100)
    assert zip_headers.END.unpack(data[-22:])[3:5] == (min(count, 0xFFFF),) * 2


def test_memory_does_not_grow_with_the_central_directory(path: Path) -> None:
    def add(out: ZipWriter) -> None:
        for number in range(8_000):
            out.add_folder("/".join([f"{number:0225}"] * 4), WHEN)

    with ZipWriter(path) as out:
        _, most = peak(lambda: add(out))
        out.finish()
    assert most < 4 * MIB
    assert len(desktop_zip.check(path)) == 8_000
    assert [one.name for one in path.parent.iterdir()] == ["r.zip"]


def test_a_finished_zip_has_its_digest(path) -> None:
    with ZipWriter(path) as out:
        out.add_file("f", WHEN, [os.urandom(MIB)], MIB)
        out.finish()
        assert out.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_one_that_is_not_finished_leaves_no_file_and_takes_no_others(path, monkeypatch) -> None:
    with ZipWriter(path) as out:
        out.add_file("f", WHEN, [b"1"], 1)
    with pytest.raises(ValueError, match="announced"), ZipWriter(path) as out:
        out.add_file("f", WHEN, [b"12345"], 4)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", mock.Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"), ZipWriter(path) as out:
            out.add_file("f", WHEN, [os.urandom(MIB)], MIB)
    assert list(path.parent.iterdir()) == []
    path.write_text("kept")
    with pytest.raises(FileExistsError):
        ZipWriter(path)
    assert path.read_text() == "kept"
