"""One ZIP made of many."""

import collections
import functools
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.files.archives import merge as module
from shared.files.archives import zip_headers
from shared.files.archives.inputs_list import list_line
from shared.files.archives.merge import Merge, Source
from shared.files.archives.zip_reader import ZipIndex, read_entries
from shared.files.names import BundleError
from tests.formats import desktop_zip
from tests.kit.cost import peak
from tests.kit.dev_program import ended
from tests.kit.each import each
from tests.kit.raw_archives import RawZip, unzipped, zipped

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
def merging() -> Iterator[tuple[Merge, Callable[[bytes], int]]]:
    """It, and what opens a file with some content."""
    with tempfile.TemporaryFile() as directory, ExitStack() as stack:

        def written(data: bytes) -> int:
            file = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            file.write(data)
            return file.fileno()

        yield Merge(directory), written


def read(merge: Merge, sources: Sequence[Source], start: int, stop: int) -> bytes:
    pieces: list[bytes] = []
    for number, *part in merge.parts(start, stop):
        if number == len(sources):
            pieces += merge.tail(*part)
        else:
            pieces += merge.copy(sources[number], number, *part)
    return b"".join(pieces)


def merged(sources: Mapping[str, bytes], note: bytes = b"") -> bytes:
    with merging() as (merge, written):
        taken = [Source(prefix, written(data)) for prefix, data in sources.items()]
        for source in taken:
            merge.add(source)
        merge.end("note.txt", note)
        whole = read(merge, taken, 0, merge.size)
        assert len(whole) == merge.size, "the size is known before"
        return whole


def test_all_entries_are_there_under_new_names_with_their_bytes_as_they_were() -> None:
    noise = os.urandom(MIB)
    first = {"a": b"1" * 1000, "deep/é": b"2", "none": b"", "empty/": b""}
    stored = zipped({"a": noise}, zipfile.ZIP_STORED)
    whole = merged({"x/": zipped(first), "y/z/": stored}, b"some are missing\n")
    expected = {f"x/{name}": data for name, data in first.items()}
    assert unzipped(whole) == expected | {"y/z/a": noise, "note.txt": b"some are missing\n"}
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
    for where in (module, zip_headers):
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
    with merging() as (merge, written):
        with pytest.raises(BundleError, match="bad/"):
            merge.add(Source("bad/", written(bad)))
        merge.add(source := Source("good/", written(good)))
        merge.end()
        assert unzipped(read(merge, [source], 0, merge.size)) == {"good/a": b"1"}


@each("how", [{"offset": 5}, {"offset": 1 << 20}, {"packed": bytes(140), "size": 140, "offset": 0}])
def test_a_source_without_what_it_lists_is_refused_before_anything_is_sent(how: Any) -> None:
    bad = RawZip().add(b"a", b"1").add(b"b", b"", **how).bytes()
    with merging() as (merge, written):
        with pytest.raises(BundleError):
            merge.add(Source("bad/", written(bad)))
        assert (merge.size, merge.entries) == (0, 0)
    with pytest.raises(BundleError):
        ZipIndex(bad).find("b")


def test_a_source_that_is_another_one_by_now_ends_the_copy() -> None:
    data, other = (zipped(one, zipfile.ZIP_STORED) for one in ({"a": b"1"}, {"a": b"", "b": b""}))
    with merging() as (merge, written):
        merge.add(Source("x/", written(data)))
        merge.end()
        with pytest.raises(BundleError, match="changed"):
            read(merge, [Source("x/", written(other))], 0, merge.size)


def test_memory_does_not_grow_with_the_number_of_sources() -> None:
    data = zipped({str(number): b"x" for number in range(5)})

    def copy(count: int) -> None:
        with merging() as (merge, written):
            archive = written(data)
            for number in range(count):
                merge.add(Source(f"{number:06}/", archive))
            merge.end()
            for number, *part in merge.parts(0, merge.size):
                source = Source(f"{number:06}/", archive)
                pieces = merge.tail(*part) if number == count else merge.copy(source, number, *part)
                collections.deque(pieces, 0)

    few, many = (peak(functools.partial(copy, count))[1] for count in (300, 600))
    assert many < few + 120_000


BUNDLE = {"run.sh": b"#!/bin/sh\n", "data/a": b"a" * 300, "data/b": b"", "gone": b"never shown"}
LEFT = {"out": b"1" * 500, "data/new": b"2", "empty/": b"", "ferryman.json": b"{}"}
KEPT = ("run.sh", "data/a", "data/b")


def listed(paths: Iterable[str]) -> bytes:
    return b"".join(list_line(hashlib.sha256(path.encode()).hexdigest(), path) for path in paths)


def result(paths: Sequence[str] = KEPT, text: bytes | None = None) -> bytes:
    return zipped(LEFT | {"inputs.sha256": listed(paths) if text is None else text})


def joined(
    bundle: bytes, result: bytes, inputs: int = len(KEPT), folder: str = "", prefix: str = ""
) -> bytes:
    """A result with what it refers to of its bundle."""
    with merging() as (merge, written):
        sources = [Source(prefix, written(result), inputs, written(bundle), folder)]
        merge.add(sources[0])
        merge.end()
        whole = read(merge, sources, 0, merge.size)
        assert module.merged(sources[0]) == whole
        assert module.merged(Source(prefix, result, inputs, bundle, folder)) == whole
        return whole


@each("prefix", ["", "x/"])
@each("root, folder", [("", ""), ("top/", ""), ("", "child/"), ("top/", "child/")])
def test_what_a_result_refers_to_comes_from_its_bundle(root, folder, prefix) -> None:
    """And what the job deleted, or another child has, does not come back."""
    files = {folder + name: data for name, data in BUNDLE.items()}
    if folder:
        files |= {"run.sh": b"a child has its own", "other/data/a": b"another child's"}
    bundle = zipped({root + name: data for name, data in files.items()}, zipfile.ZIP_STORED)
    whole = joined(bundle, result(), folder=folder, prefix=prefix)
    expected = {name: BUNDLE[name] for name in KEPT} | LEFT
    assert unzipped(whole) == {prefix + name: data for name, data in expected.items()}
    assert len(bundle) > whole.index(b"a" * 300), "as it is packed there"


def test_without_its_bundle_it_is_what_is_new() -> None:
    with merging() as (merge, written):
        merge.add(source := Source("", written(result()), len(KEPT)))
        merge.end()
        assert unzipped(read(merge, [source], 0, merge.size)) == LEFT


@settings(max_examples=40)
@given(st.data())
def test_every_range_has_the_bytes_of_the_whole(data: st.DataObject) -> None:
    names = st.text("abé", min_size=1, max_size=5)
    trees = st.dictionaries(names, st.binary(max_size=300), max_size=4)
    methods = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with merging() as (merge, written):
        sources = []
        for number in range(data.draw(st.integers(0, 4))):
            sent, left = data.draw(trees), data.draw(trees)
            kept = sorted(sent.keys() - left.keys())
            bundle = {f"{number}/{name}": content for name, content in sent.items()}
            ended = left | ({"list": listed(kept)} if kept else {})
            of = zipped(ended, data.draw(methods)), zipped({"run.sh": b"", **bundle})
            result, bundle_zip = (written(one) for one in of)
            sources.append(Source(f"{number}/", result, len(kept), bundle_zip, f"{number}/"))
            merge.add(sources[-1])
        merge.end("note", data.draw(st.binary(max_size=20)))
        whole = read(merge, sources, 0, merge.size)
        assert len(whole) == merge.size
        unzipped(whole)
        for _ in range(20):
            start = data.draw(st.integers(0, merge.size))
            stop = data.draw(st.integers(start, merge.size))
            assert read(merge, sources, start, stop) == whole[start:stop]


TWICE = zipped({"run.sh": b"", "inputs.sha256": listed(["run.sh"])})


@each(
    "left, inputs, code",
    [
        (result(["run.sh", "not/sent"]), 2, "unknown_input"),
        (result(["run.sh", "../run.sh"]), 2, "unknown_input"),
        (result(["run.sh", "run.sh"]), 2, "damaged"),
        (result(["run.sh"]), 2, "damaged"),
        (result(["run.sh", "gone"]), 1, "damaged"),
        (result(text=listed(KEPT)[:-1]), 3, "damaged"),
        (result(text=b"x" + listed(KEPT)), 3, "damaged"),
        (result(text=listed(KEPT).replace(b"run.sh", b"run\xff\xfe")), 3, "damaged"),
        (zipped(LEFT), 1, "damaged"),
        (zipped({}), 1, "damaged"),
        (TWICE, 1, "duplicate_name"),
        (zipped({"gone/x": b"", "inputs.sha256": listed(["gone"])}), 1, "file_and_folder"),
    ],
)
def test_a_list_that_is_not_the_bundles_is_refused(left, inputs, code) -> None:
    with pytest.raises(BundleError) as refused:
        joined(zipped(BUNDLE), left, inputs)
    assert refused.value.code == code


def test_a_list_that_is_longer_than_any_of_the_bundle_is_not_unpacked() -> None:
    """It may be packed very small."""
    count, bundle = 100_000, zipped(BUNDLE)
    left = result(text=b"".join(list_line("0" * 64, f"{number:06}") for number in range(count)))

    def refused() -> None:
        with pytest.raises(BundleError):
            joined(bundle, left, count)

    assert peak(refused)[1] < 2 << 20


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
