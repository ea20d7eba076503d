from __future__ import annotations

import tracemalloc
import zipfile

import pytest

from shared.files.bundles.reader import BundleReader
from tests.kit.raw_archives import (
    RawZip,
    deflated,
    expand_bytes,
    refusal,
    unpacked,
)

HELLO = {"run.sh": b"echo hello\n", "data/in.txt": b"1 2 3\n"}


def good() -> RawZip:
    return RawZip().add(b"run.sh", b"echo\n")


def test_the_hand_made_zip_is_accepted_as_long_as_nothing_in_it_lies(tmp_path):
    archive = good().add(b"x", b"abc" * 99, method=8, packed=deflated(b"abc" * 99))
    archive.add(b"d/", b"", mode=0o040755)
    expand_bytes(archive.bytes(comment=b"made by hand"), tmp_path)
    expected = {"run.sh": b"echo\n", "x": b"abc" * 99}
    assert unpacked(tmp_path / "bundle", tmp_path / "out") == expected


ABC = deflated(b"abc")


@pytest.mark.parametrize(
    ("archive", "code"),
    [
        (good().add(b"x", b"/etc/passwd", mode=0o120777), "link"),
        (good().add(b"x", b"", mode=0o010644), "special_file"),
        (good().add(b"x", b"", mode=0o020644), "special_file"),
        (good().add(b"x", b"", mode=0o060644), "special_file"),
        (good().add(b"x", b"", mode=0o140644), "special_file"),
        (good().add(b"x", b"", mode=0o040755), "special_file"),
        (good().add(b"x/", b"", mode=0o100644), "special_file"),
        (good().add(b"x", b"secret", flags=1), "encrypted"),
        (good().add(b"x", b"secret", flags=0x41), "encrypted"),
        (good().add(b"x", b"secret", flags=0x2000), "encrypted"),
        (good().add(b"x", b"secret", method=99), "encrypted"),
        (good().add(b"x", b"", method=12), "compression"),
        (good().add(b"x", b"", method=14), "compression"),
        (good().add(b"x", b"", method=1234), "compression"),
        (good().add(b"x", b"1").add(b"x", b"2"), "duplicate_name"),
        (good().add(b"x\0.txt", b"1"), "unsafe_name"),
        (good().add(b"x\xff", b""), "bad_utf8"),
        (good().add(b"x\xff", b"", flags=0), "bad_utf8"),
        (good().add(b"", b""), "unsafe_name"),
        (good().add(b"x", b"", local_name=b"y"), "two_names"),
        (good().add(b"x", b"", local_method=8), "lying_header"),
        (good().add(b"x", b"12", local_size=3), "lying_header"),
        (good().add(b"x", b"12", size=3), "lying_size"),
        (good().add(b"x", b"abc", method=8, packed=ABC, size=2), "lying_size"),
        (good().add(b"x", b"abc", method=8, packed=ABC, size=4), "lying_size"),
        (good().add(b"x", b"abc", method=8, packed=ABC, crc=7), "bad_checksum"),
        (good().add(b"x", b"abc", crc=7), "bad_checksum"),
        (good().add(b"x", b"abc", method=8, packed=ABC[:-1]), "truncated"),
        (good().add(b"x", b"abc", method=8, packed=b"\xff" + ABC), "damaged"),
        (good().add(b"x", b"abc", method=8, packed=ABC + b"more"), "hidden_data"),
        (good().add(b"x/", b"abc", mode=0), "lying_header"),
        (good().add(b"x", b"", behind=b"hidden"), "hidden_data"),
        (good().add(b"x", b"", behind=b"hidden").add(b"y", b""), "hidden_data"),
        (good().add(b"x", b"", flags=8, behind=b"wrong descriptor"), "lying_header"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_zip_entry_that_lies_or_is_no_file_is_refused_by_name(tmp_path, archive, code):
    problem = refusal(archive.bytes(), tmp_path)
    assert problem.code == code
    assert problem.part != "run.sh"


@pytest.mark.parametrize(
    ("archive", "code"),
    [
        (b"#!/bin/sh\n" + good().bytes(), "not_an_archive"),
        (good().bytes() + b"more", "trailing_data"),
        (good().bytes() + good().bytes(), "damaged"),
        (good().bytes(count=2), "damaged"),
        (good().add(b"y", b"").bytes(count=1), "damaged"),
        (good().bytes(start=3), "damaged"),
        (good().bytes()[:-1], "truncated"),
        (good().bytes(comment=b"PK\5\6" + bytes(18)), "damaged"),
    ],
)
def test_a_zip_that_is_two_things_at_once_is_refused(tmp_path, archive, code):
    problem = refusal(archive, tmp_path)
    assert (problem.code, problem.part) == (code, "bundle.zip")


def test_hidden_data_before_the_first_entry_is_refused(tmp_path):
    archive = RawZip()
    archive.body += b"PK\3\4 pretends to begin with an entry"
    assert refusal(archive.add(b"run.sh", b"").bytes(), tmp_path).code == "hidden_data"


def test_entries_that_share_one_compressed_block_are_refused(tmp_path):
    # "A better zip bomb": each entry quotes the headers of the following ones as its content.
    kernel = deflated(bytes(1 << 20))
    archive = RawZip().add(b"k", bytes(1 << 20), method=8, packed=kernel)
    for i in range(50):
        archive.add(b"%d" % i, bytes(1 << 20), method=8, packed=kernel, offset=0)
    assert refusal(archive.bytes(), tmp_path).code == "overlap"
    few = RawZip().add(b"run.sh", b"x").add(b"a", b"y").add(b"b", b"y", offset=37)
    assert refusal(few.bytes(), tmp_path).code == "overlap"


@pytest.mark.parametrize("size", [64 << 20, 1 << 40])
def test_a_bomb_that_says_so_is_refused_before_anything_is_unpacked(tmp_path, size):
    archive = good().add(
        b"x", b"", method=8, packed=deflated(bytes(1000)), size=min(size, 2**32 - 2)
    )
    assert refusal(archive.bytes(), tmp_path, max_bytes=1 << 50).code == "bomb"


def test_a_bomb_that_lies_about_its_size_is_stopped_at_that_size(tmp_path):
    packed = deflated(bytes(64 << 20))
    archive = good().add(b"x", b"", method=8, packed=packed, size=1000, crc=0)
    tracemalloc.start()
    try:
        problem = refusal(archive.bytes(), tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert problem.code == "lying_size"
    assert peak < 8 << 20


def test_a_zip_whose_table_of_contents_is_huge_is_refused_before_it_is_read(tmp_path):
    archive = RawZip()
    archive.directory += bytes(12 << 20)
    archive.body += b"PK\3\4"
    packed = archive.bytes()
    tracemalloc.start()
    try:
        problem = refusal(packed, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert problem.code == "too_many_files"
    assert peak < 1 << 20


def test_zips_written_to_a_pipe_are_read(tmp_path):
    class Pipe:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            self.data += data
            return len(data)

        def flush(self) -> None: ...

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        for name, content in HELLO.items():
            archive.writestr(name, content)
    expand_bytes(pipe.data, tmp_path)
    assert unpacked(tmp_path / "bundle", tmp_path / "out") == HELLO


def test_names_in_utf8_are_read_whether_or_not_the_flag_says_so(tmp_path):
    expand_bytes(good().add("dü/é".encode(), b"", flags=0).bytes(), tmp_path)
    with BundleReader(tmp_path / "bundle") as reader:
        assert [entry.path for entry in reader.entries] == ["run.sh", "dü/é"]
