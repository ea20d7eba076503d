"""ZIPs that are uploaded: what lies in them is refused; and the list of a sealed one."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from shared.files.archives.zip_index import ZipIndex
from shared.files.bundles.reader import BundleReader
from shared.files.names import BundleError
from tests.kit.cost import peak
from tests.kit.each import each
from tests.kit.raw_archives import RawZip, deflated, expand_bytes, refusal, unpacked


def good() -> RawZip:
    return RawZip().add(b"run.sh", b"echo\n")


def test_the_hand_made_zip_is_accepted_as_long_as_nothing_in_it_lies(tmp_path):
    archive = good().add(b"x", b"abc" * 99, method=8, packed=deflated(b"abc" * 99))
    archive.add(b"d/", b"", mode=0o040755)
    expand_bytes(archive.bytes(comment=b"made by hand"), tmp_path)
    expected = {"run.sh": b"echo\n", "x": b"abc" * 99}
    assert unpacked(tmp_path / "bundle", tmp_path / "out") == expected


ABC = deflated(b"abc")


@each(
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
)
def test_a_zip_entry_that_lies_or_is_no_file_is_refused_by_name(tmp_path, archive, code):
    problem = refusal(archive.bytes(), tmp_path)
    assert problem.code == code
    assert problem.part != "run.sh"


@each(
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


@each("size", [64 << 20, 1 << 40])
def test_a_bomb_that_says_so_is_refused_before_anything_is_unpacked(tmp_path, size):
    archive = good().add(
        b"x", b"", method=8, packed=deflated(bytes(1000)), size=min(size, 2**32 - 2)
    )
    assert refusal(archive.bytes(), tmp_path, max_bytes=1 << 50).code == "bomb"


def test_a_bomb_that_lies_about_its_size_is_stopped_at_that_size(tmp_path):
    packed = deflated(bytes(24 << 20))
    archive = good().add(b"x", b"", method=8, packed=packed, size=1000, crc=0).bytes()
    problem, most = peak(lambda: refusal(archive, tmp_path))
    assert problem.code == "lying_size"
    assert most < 4 << 20


def test_a_zip_whose_table_of_contents_is_huge_is_refused_before_it_is_read(tmp_path):
    archive = RawZip()
    archive.directory += bytes(12 << 20)
    archive.body += b"PK\3\4"
    packed = archive.bytes()
    problem, most = peak(lambda: refusal(packed, tmp_path))
    assert problem.code == "too_many_files"
    assert most < 1 << 20


def test_names_in_utf8_are_read_whether_or_not_the_flag_says_so(tmp_path):
    expand_bytes(good().add("dü/é".encode(), b"", flags=0).bytes(), tmp_path)
    with BundleReader(tmp_path / "bundle") as reader:
        assert [entry.path for entry in reader.entries] == ["run.sh", "dü/é"]


# ---------------------------------------------------------------------------- lists of sealed ones


def packed(path: Path, names: list[str]) -> int:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("folder/", b"")
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(name, (2026, 3, 4, 5, 6, 8))
            info.extra = b"UT\x01\x00x" if number % 2 else b""
            archive.writestr(info, b"x" * (number % 7))
    path.write_bytes(content.getvalue())
    return path.stat().st_size


def test_a_scan_finds_what_the_whole_list_has(tmp_path):
    names = [f"{'long/' * (one % 9)}ü {one}" if one % 3 else f"{one}" for one in range(4_000)]
    size = packed(tmp_path / "a.zip", names)
    with (tmp_path / "a.zip").open("rb") as file:
        index = ZipIndex(file.fileno(), 0, size)
        wanted = [(one.name, one.size, one.modified) for one, _ in index.files()]
        assert [one[0] for one in wanted] == names
        assert list(index.scan()) == wanted


@each("at", [0, 28, 30])
def test_a_scan_of_a_damaged_list_ends(tmp_path, at):
    """The signature, the length of the name, that of the extras."""
    path = tmp_path / "a.zip"
    packed(path, ["a.txt", "b.txt"])
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\1\2") + at] ^= 0x7F
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(BundleError):
        list(ZipIndex(file.fileno(), 0, len(data)).scan())
