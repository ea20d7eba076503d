"""One ZIP made of many."""

import collections
import functools
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.files.archives import merge as module
from shared.files.archives import zip_directory
from shared.files.archives.merge import Merge
from shared.files.archives.zip_directory import read_entries
from shared.files.names import BundleError
from tests.formats import desktop_zip
from tests.kit.cost import peak
from tests.kit.dev_program import ended
from tests.kit.each import each
from tests.kit.raw_archives import zipped

MIB = 1 << 20


class Pipe(io.BytesIO):
    """Programs that cannot go back write data descriptors."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation


def streamed(files: Mapping[str, bytes], out: io.BytesIO, *, zip64: bool = False) -> bytes:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            with archive.open(name, "w", force_zip64=zip64) as file:
                file.write(content)
    return out.getvalue()


@contextmanager
def merging() -> Iterator[tuple[Merge, int]]:
    """It, and the file in which its sources lie."""
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as directory:
        yield Merge(directory), file.fileno()


def merged(sources: Mapping[str, bytes], note: bytes = b"") -> bytes:
    """Merge them out of one file in which they lie between other bytes."""
    with merging() as (merge, fd):
        places = []
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


def test_all_entries_are_there_under_new_names_with_their_bytes_as_they_were() -> None:
    noise = os.urandom(MIB)
    first = {"a": b"1" * 1000, "deep/é": b"2", "none": b"", "empty/": b""}
    stored = zipped({"a": noise}, zipfile.ZIP_STORED)
    whole = merged({"x/": zipped(first), "y/z/": stored}, b"some are missing\n")
    expected = {f"x/{name}": data for name, data in first.items()}
    assert content(whole) == expected | {"y/z/a": noise, "note.txt": b"some are missing\n"}
    assert noise in whole
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        info = archive.getinfo("x/a")
    assert (info.compress_type, info.compress_size < 100) == (zipfile.ZIP_DEFLATED, True)


def test_desktops_open_it_however_the_sources_were_written(tmp_path: Path) -> None:
    files = {"a": b"1" * 1000, "é/": b"", "none": b""}
    path = tmp_path / "whole.zip"
    sources = {"descriptors/": streamed(files, Pipe()), "plain/": zipped(files)}
    sources["zip64/"] = streamed(files, io.BytesIO(), zip64=True)
    path.write_bytes(merged(sources))
    headers = desktop_zip.check(path)
    assert ({header.needed for header in headers}, len(headers)) == ({20}, 9)
    ended("unzip", "-tq", path, env={"LANG": "C.UTF-8"})


def test_programs_and_times_stay_what_they_are() -> None:
    out, at = io.BytesIO(), (2026, 11, 21, 13, 14, 16)
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("run.sh", at)
        info.external_attr = 0o100755 << 16
        archive.writestr(info, b"")
        archive.writestr(zipfile.ZipInfo("never", (1980, 1, 1, 0, 0, 0)), b"")
    data = out.getvalue().replace(b"\0\0\x21\0", b"\xff\xff\xff\xff")
    with zipfile.ZipFile(io.BytesIO(merged({"x/": data}))) as archive:
        found = [(one.date_time, one.external_attr >> 16) for one in archive.infolist()]
    assert found == [(at, 0o100755), ((1980, 1, 1, 0, 0, 0), 0o100644)]


def test_large_values_have_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (module, zip_directory):
        monkeypatch.setattr(where, "MAX_32", 2 * MIB)  # as if so much were too large already
    monkeypatch.setattr(desktop_zip, "_FULL", 2 * MIB)
    path = tmp_path / "whole.zip"
    path.write_bytes(merged({"x/": zipped({"big": os.urandom(3 * MIB), "behind": b"1"})}))
    headers = desktop_zip.check(path)
    assert [(header.needed, header.wide) for header in headers] == [(45, 16), (45, 8)]


LONG = "/".join(letter * 255 for letter in "xyzw")


@each("names", [["../a"], [LONG], ["a", "a/b"]])
def test_a_source_with_names_that_are_not_safe_is_refused_and_leaves_nothing(names) -> None:
    bad, good = zipped({"b": b"2", **dict.fromkeys(names, b"")}), zipped({"a": b"1"})
    with merging() as (merge, fd):
        os.write(fd, bad + good)
        with pytest.raises(BundleError, match="bad/"):
            merge.add("bad/", fd, 0, len(bad))
        place = ("good/", fd, len(bad), len(good))
        length = merge.add(*place)
        merge.end()
        assert content(b"".join([*merge.copy(*place, length), *merge.tail()])) == {"good/a": b"1"}


def test_a_source_that_is_another_one_by_now_ends_the_copy() -> None:
    data, other = (zipped(one, zipfile.ZIP_STORED) for one in ({"a": b"1"}, {"a": b"", "b": b""}))
    with merging() as (merge, fd):
        os.write(fd, data)
        length = merge.add("x/", fd, 0, len(data))
        os.pwrite(fd, other, 0)
        with pytest.raises(BundleError, match="changed"):
            list(merge.copy("x/", fd, 0, len(other), length))


def test_memory_does_not_grow_with_the_number_of_sources() -> None:
    data = zipped({str(number): b"x" for number in range(5)})

    def copy(sources: int) -> None:
        with merging() as (merge, fd):
            os.write(fd, data)
            lengths = {merge.add(f"{number:06}/", fd, 0, len(data)) for number in range(sources)}
            merge.end()
            for number in range(sources):
                collections.deque(merge.copy(f"{number:06}/", fd, 0, len(data), *lengths), 0)
            collections.deque(merge.tail(), 0)

    few, many = (peak(functools.partial(copy, count))[1] for count in (300, 600))
    assert many < few + 120_000


GOOD = zipped({"a": b"text " * 100, "b/c": b"1", "d/": b"", "e": b""})


@settings(max_examples=60)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 7))
def test_a_damaged_source_is_refused_or_gives_a_zip_that_reads(at: int, bit: int) -> None:
    with pytest.raises(BundleError):
        merged({"x/": GOOD[:at]})
    damaged = GOOD[:at] + bytes([GOOD[at] ^ 1 << bit]) + GOOD[at + 1 :]
    try:
        whole = merged({"x/": damaged, "y/": GOOD})
    except BundleError:
        return
    with tempfile.TemporaryFile() as file:
        file.write(whole)
        file.flush()
        names = {entry.name for entry in read_entries(file.fileno(), 100)}
    assert all(name.startswith(("x/", "y/")) for name in names)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.read("y/a") == b"text " * 100
