"""One ZIP made of many."""

from __future__ import annotations

import collections
import functools
import io
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.files.archives import merge as module
from shared.files.archives import zip_directory
from shared.files.archives.merge import Merge
from shared.files.archives.zip_directory import read_entries
from shared.files.names import BundleError
from tests.kit import desktop_zip
from tests.kit.cost import peak
from tests.kit.each import each

Files = Mapping[str, bytes]
MIB = 1 << 20


def packed(files: Files, method: int = zipfile.ZIP_DEFLATED, **how: bool) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            if how.get("streamed"):
                with archive.open(name, "w", force_zip64=how.get("zip64", False)) as file:
                    file.write(content)
            else:
                archive.writestr(name, content)
    return out.getvalue()


def streamed(files: Files) -> bytes:
    """As programs write that cannot go back: with data descriptors."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise io.UnsupportedOperation

    out = Pipe()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def merged(sources: Mapping[str, bytes], note: bytes = b"") -> bytes:
    """Merge them out of one file in which they lie between other bytes."""
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as directory:
        merge = Merge(directory)
        fd, places = file.fileno(), []
        for prefix, data in sources.items():
            os.write(fd, b"between")
            places.append((prefix, fd, os.lseek(fd, 0, os.SEEK_CUR), len(data)))
            os.write(fd, data)
        taken = [(place, merge.add(*place)) for place in places]
        if note:
            merge.add_text("note.txt", note)
        merge.end()
        pieces = [piece for place, length in taken for piece in merge.copy(*place, length)]
        if note:
            pieces.append(merge.text("note.txt", note))
        whole = b"".join([*pieces, *merge.tail()])
        assert len(whole) == merge.size, "the size is known before"
        return whole


def content(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_all_entries_are_there_under_new_names(tmp_path: Path) -> None:
    first = {"a": b"1" * 1000, "deep/é": os.urandom(MIB), "none": b"", "empty/": b""}
    whole = merged({"x/": packed(first), "y/z/": packed({"a": b"2"})}, b"some are missing\n")
    assert content(whole) == {f"x/{name}": data for name, data in first.items()} | {
        "y/z/a": b"2",
        "note.txt": b"some are missing\n",
    }
    path = tmp_path / "whole.zip"
    path.write_bytes(whole)
    done = subprocess.run(
        ["unzip", "-tq", path], capture_output=True, env={"LANG": "C.UTF-8"}, check=False
    )
    assert done.returncode == 0, done.stdout
    with path.open("rb") as file:
        assert len(read_entries(file.fileno(), 100)) == 6


def test_desktops_open_it_however_the_sources_were_written(tmp_path: Path) -> None:
    files = {"a": b"1" * 1000, "b/": b"", "none": b""}
    path = tmp_path / "whole.zip"
    path.write_bytes(
        merged(
            {
                "descriptors/": streamed(files),
                "zip64/": packed(files, streamed=True, zip64=True),
                "plain/": packed(files),
            }
        )
    )
    headers = desktop_zip.check(path)
    assert {header.needed for header in headers} == {20}
    assert len(headers) == 9


def test_compressed_bytes_are_copied_as_they_are() -> None:
    noise = os.urandom(5000)
    stored = packed({"a": noise}, zipfile.ZIP_STORED)
    assert noise in merged({"x/": stored})
    deflated = packed({"a": b"text " * 1000})
    with zipfile.ZipFile(io.BytesIO(merged({"x/": deflated}))) as archive:
        info = archive.getinfo("x/a")
        assert (info.compress_type, info.compress_size < 100) == (zipfile.ZIP_DEFLATED, True)


def test_programs_and_times_stay_what_they_are() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("run.sh", (2026, 11, 21, 13, 14, 16))
        info.external_attr = 0o100755 << 16
        archive.writestr(info, b"")
        archive.writestr(zipfile.ZipInfo("never", (1980, 1, 1, 0, 0, 0)), b"")
    data = out.getvalue().replace(b"\0\0\x21\0", b"\xff\xff\xff\xff")
    with zipfile.ZipFile(io.BytesIO(merged({"x/": data}))) as archive:
        program, never = archive.infolist()
    assert (program.date_time, program.external_attr >> 16) == (
        (2026, 11, 21, 13, 14, 16),
        0o100755,
    )
    assert (never.date_time, never.external_attr >> 16) == ((1980, 1, 1, 0, 0, 0), 0o100644)


def test_large_values_have_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (module, zip_directory):
        monkeypatch.setattr(where, "MAX_32", 2 * MIB)  # as if so much were too large already
    monkeypatch.setattr(desktop_zip, "_FULL", 2 * MIB)
    path = tmp_path / "whole.zip"
    big = packed({"big": os.urandom(3 * MIB), "behind": b"1"})
    path.write_bytes(merged({"x/": big}))
    headers = desktop_zip.check(path)
    assert [(header.needed, header.wide) for header in headers] == [(45, 16), (45, 8)]


@each(
    ("files", "code"),
    [
        ({"../a": b""}, "unsafe_name"),
        ({"/a": b""}, "unsafe_name"),
        ({"a": b"", "a/b": b""}, "file_and_folder"),
        ({"x" * 255 + "/" + "y" * 255 + "/" + "z" * 255 + "/" + "w" * 255: b""}, "unsafe_name"),
    ],
)
def test_a_source_with_names_that_are_not_safe_is_refused(files: Files, code: str) -> None:
    with pytest.raises(BundleError) as refused:
        merged({"x/": packed(files)})
    assert refused.value.code == code


def test_a_source_that_is_refused_leaves_nothing() -> None:
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as directory:
        merge, fd = Merge(directory), file.fileno()
        bad = packed({"a": b"1", "b/../c": b"2"})
        good = packed({"a": b"1"})
        os.write(fd, bad + good)
        with pytest.raises(BundleError):
            merge.add("bad/", fd, 0, len(bad))
        place = ("good/", fd, len(bad), len(good))
        length = merge.add(*place)
        merge.end()
        assert content(b"".join([*merge.copy(*place, length), *merge.tail()])) == {"good/a": b"1"}


def test_a_source_that_is_another_one_by_now_ends_the_copy() -> None:
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as directory:
        merge, fd = Merge(directory), file.fileno()
        data = packed({"a": b"1"}, zipfile.ZIP_STORED)
        os.write(fd, data)
        length = merge.add("x/", fd, 0, len(data))
        other = packed({"a": b"", "b": b""}, zipfile.ZIP_STORED)
        os.pwrite(fd, other, 0)
        with pytest.raises(BundleError, match="changed"):
            list(merge.copy("x/", fd, 0, len(other), length))


def test_memory_does_not_grow_with_the_number_of_sources() -> None:
    data = packed({str(number): b"x" for number in range(5)})

    def copy(sources: int) -> None:
        with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as directory:
            merge, fd = Merge(directory), file.fileno()
            os.write(fd, data)
            lengths = {merge.add(f"{number:06}/", fd, 0, len(data)) for number in range(sources)}
            merge.end()
            for number in range(sources):
                collections.deque(merge.copy(f"{number:06}/", fd, 0, len(data), *lengths), 0)
            collections.deque(merge.tail(), 0)

    few, many = (peak(functools.partial(copy, count))[1] for count in (300, 600))
    assert many < few + 120_000


_GOOD = packed({"a": b"text " * 100, "b/c": b"1", "d/": b"", "e": b""})


@settings(max_examples=60)
@given(st.integers(0, len(_GOOD) - 1), st.integers(0, 7))
def test_a_damaged_source_is_refused_or_gives_a_zip_that_reads(at: int, bit: int) -> None:
    with pytest.raises(BundleError):
        merged({"x/": _GOOD[:at]})
    damaged = _GOOD[:at] + bytes([_GOOD[at] ^ 1 << bit]) + _GOOD[at + 1 :]
    try:
        whole = merged({"x/": damaged, "y/": _GOOD})
    except BundleError:
        return
    with tempfile.TemporaryFile() as file:
        file.write(whole)
        file.flush()
        names = {entry.name for entry in read_entries(file.fileno(), 100)}
    assert all(name.startswith(("x/", "y/")) for name in names)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.read("y/a") == b"text " * 100
