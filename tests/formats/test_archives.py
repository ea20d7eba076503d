"""ZIPs and tars on their way into a bundle: what is left out, and what is refused of hostile ones.

That whatever programs write comes back: tests/formats/test_round_trip.py.
"""

import functools
import gzip
import io
import os
import shutil
import struct
import tarfile
import zipfile
from typing import Any

import pytest

from shared.files.archives.zip_reader import ListedFile, ZipIndex
from shared.files.names import BundleError
from tests.kit.cost import peak
from tests.kit.each import each
from tests.kit.raw_archives import (
    RawZip,
    deflated,
    expand_bytes,
    member,
    refusal,
    tar_of,
    tarred,
    unpacked,
    zipped,
)


def header_block(name: bytes, size: int = 0, kind: bytes = b"0", size_field: bytes = b"") -> bytes:
    """One ustar header with a right checksum, whatever else is wrong with it."""
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = size_field or b"%011o\0" % size
    block[156:157] = kind
    block[257:265] = b"ustar\00000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def raw_tar(*members: tuple[bytes, bytes], end: bytes = bytes(1024)) -> bytes:
    body = b"".join(head + content + bytes(-len(content) % 512) for head, content in members)
    return body + end


@each("build", [zipped, tarred, lambda files: tarred(files, "w:gz")])
def test_too_many_files_or_bytes_are_refused(tmp_path, build):
    files = {f"d/{i}": b"x" * 100 for i in range(10)} | {"run.sh": b""}
    assert refusal(build(files), tmp_path, max_files=10).code == "too_many_files"
    assert refusal(build(files), tmp_path, max_bytes=999).code == "too_large"
    assert expand_bytes(build(files), tmp_path, max_files=11, max_bytes=1000).files == 11


def test_folders_are_ignored_and_a_leading_dot_is_dropped_but_all_is_bounded(tmp_path):
    folders = [member(name, type=tarfile.DIRTYPE) for name in ("./", "./d", "./d/")]
    files = [member("./d/x"), member("./run.sh")]
    expand_bytes(tar_of((one, b"") for one in [*folders, *files]), tmp_path)
    assert set(unpacked(tmp_path / "bundle", tmp_path / "out")) == {"d/x", "run.sh"}
    (tmp_path / "bundle").unlink()
    shutil.rmtree(tmp_path / "out")
    many = tar_of([(member(f"{i}", type=tarfile.DIRTYPE), b"") for i in range(1100)])
    assert refusal(many, tmp_path, max_files=10).code == "too_many_files"
    litter = zipped({f"__MACOSX/{i}": b"x" * 100 for i in range(20)} | {"run.sh": b""})
    assert refusal(litter, tmp_path, max_bytes=1999).code == "too_large"


@each("build", [zipped, tarred])
def test_what_macos_adds_is_left_out(tmp_path, build):
    double = b"\x00\x05\x16\x07" + bytes(20)
    added = ("._top", "top/._run.sh", "top/.DS_Store", "__MACOSX/top/._run.sh", "__MACOSX/x")
    kept = {"run.sh": b"", "._mine": b"not AppleDouble", "a.DS_Store": b"x"}
    files = dict.fromkeys(added, double) | {f"top/{name}": data for name, data in kept.items()}
    expand_bytes(build(files), tmp_path)
    assert unpacked(tmp_path / "bundle", tmp_path / "out") == kept


NO_ARCHIVES = {
    b"": "no archive",
    b"hello" * 200: "no archive",
    b"BZh91AY": "bzip2 archives are not read",
    b"\xfd7zXZ\0": "xz archives",
    bytes(10240): "no archive",
    gzip.compress(b"hello" * 500, mtime=0): "damaged",
}


@each("content", NO_ARCHIVES)
def test_what_is_no_archive_is_refused_by_its_content(tmp_path, content):
    problem = refusal(content, tmp_path)
    assert problem.part == "bundle.zip"
    assert NO_ARCHIVES[content] in problem.message


def test_expanding_keeps_memory_flat(tmp_path):
    content = os.urandom(1 << 20) * 9
    expand_bytes(zipped({"run.sh": content}), tmp_path)  # warm up, and what imports cost
    tar = tarred({"run.sh": content}, "w:gz")
    _, most = peak(lambda: expand_bytes(tar, tmp_path))
    assert most < 6 << 20


# ---------------------------------------------------------------------------- hostile ZIPs


def good() -> RawZip:
    return RawZip().add(b"run.sh", b"echo\n")


def begun(body: bytes) -> RawZip:
    archive = RawZip()
    archive.body += body
    return archive.add(b"x", b"")


def odd(content: bytes, **fields: Any) -> RawZip:
    return good().add(b"x", content, **fields)


def far(at: int) -> RawZip:
    """An entry so far away that no file has it."""
    found, extra = good(), struct.pack("<2HQ", 1, 8, at)
    return found.add(b"y", b"", offset=0xFFFF_FFFF, extra=extra)


ABC = deflated(b"abc")


@each(
    ("archive", "code"),
    [
        (odd(b"/etc/passwd", mode=0o120777), "link"),
        *(
            (odd(b"", mode=mode), "special_file")
            for mode in (0o010644, 0o020644, 0o060644, 0o140644, 0o040755)
        ),
        (good().add(b"x/", b"", mode=0o100644), "special_file"),
        *((odd(b"secret", flags=flags), "encrypted") for flags in (1, 0x41, 0x2000)),
        (odd(b"secret", method=99), "encrypted"),
        *((odd(b"", method=method), "compression") for method in (12, 14, 1234)),
        (odd(b"1").add(b"x", b"2"), "duplicate_name"),
        (good().add(b"x\0.txt", b"1"), "unsafe_name"),
        (good().add(b"x\xff", b""), "bad_utf8"),
        (good().add(b"x\xff", b"", flags=0), "bad_utf8"),
        (good().add(b"", b""), "unsafe_name"),
        (odd(b"12", size=3), "lying_size"),
        (odd(b"abc", method=8, packed=ABC, size=2), "lying_size"),
        (odd(b"abc", method=8, packed=ABC, size=4), "lying_size"),
        (odd(b"abc", method=8, packed=ABC, crc=7), "bad_checksum"),
        (odd(b"abc", crc=7), "bad_checksum"),
        (odd(b"abc", method=8, packed=ABC[:-1]), "truncated"),
        (odd(b"abc", method=8, packed=b"\xff" + ABC), "damaged"),
        (odd(b"abc", method=8, packed=ABC + b"more"), "hidden_data"),
        (good().add(b"x/", b"abc", mode=0), "lying_size"),
        (odd(b"").add(b"y", b"", offset=3), "damaged"),
        (odd(b"").add(b"y", b"", offset=1 << 20), "truncated"),
        *((far(at), "truncated") for at in (2**63 - 30, 2**63 - 1, 2**64 - 1)),
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
        (good().bytes(start=3), "damaged"),
        (good().bytes(count=2), "damaged"),
        (good().add(b"y", b"").bytes(count=1), "damaged"),
        (good().bytes()[:-1], "truncated"),
        (good().bytes(comment=b"a comment")[:-1], "truncated"),
        (good().bytes(comment=b"PK\5\6" + bytes(18)), "damaged"),
    ],
)
def test_a_zip_with_a_wrong_end_is_refused(tmp_path, archive, code):
    problem = refusal(archive, tmp_path)
    assert (problem.code, problem.part) == (code, "bundle.zip")


@each(
    "archive",
    [
        odd(b"", local_name=b"y"),
        odd(b"12", local_method=8, local_size=3),
        odd(b"", behind=b"hidden"),
        odd(b"", flags=8, behind=b"no descriptor"),
        begun(b"PK\3\4 pretends to begin with an entry").add(b"run.sh", b""),
    ],
)
def test_the_table_of_contents_of_a_zip_alone_says_what_there_is(tmp_path, archive):
    expand_bytes(archive.bytes(), tmp_path)
    found = unpacked(tmp_path / "bundle", tmp_path / "out")
    assert (set(found), found["x"] in {b"", b"12"}) == ({"run.sh", "x"}, True)


def test_entries_that_share_one_compressed_block_are_refused(tmp_path):
    # "A better zip bomb": each entry quotes the headers of the following ones as its content.
    kernel = deflated(bytes(1 << 20))
    archive = RawZip().add(b"k", bytes(1 << 20), method=8, packed=kernel)
    for i in range(50):
        archive.add(b"%d" % i, bytes(1 << 20), method=8, packed=kernel, offset=0)
    assert refusal(archive.bytes(), tmp_path).code == "overlap"


def test_a_bomb_is_refused_before_it_is_unpacked_or_stopped_at_the_size_that_it_says(tmp_path):
    for size in (64 << 20, 2**32 - 2):
        bomb = odd(b"", method=8, packed=deflated(bytes(1000)), size=size)
        assert refusal(bomb.bytes(), tmp_path, max_bytes=1 << 50).code == "bomb"
    in_gzip = gzip.compress(raw_tar((header_block(b"x", 24 << 20), bytes(24 << 20))))
    assert refusal(in_gzip, tmp_path, max_bytes=1 << 40).code == "bomb"
    liar = odd(b"", method=8, packed=deflated(bytes(24 << 20)), size=1000, crc=0).bytes()
    problem, most = peak(lambda: refusal(liar, tmp_path))
    assert problem.code == "lying_size"
    assert most < 4 << 20


def test_a_zip_whose_table_of_contents_is_huge_is_refused_before_it_is_read(tmp_path):
    archive = good()
    archive.directory += bytes(12 << 20)
    problem, most = peak(functools.partial(refusal, archive.bytes(), tmp_path))
    assert problem.code == "too_many_files"
    assert most < 1 << 20


# ---------------------------------------------------------------------------- hostile tars


@each(
    ("kind", "code"),
    [(tarfile.LNKTYPE, "link"), (tarfile.GNUTYPE_SPARSE, "sparse_file"), (b"M", "split_archive")],
)
def test_a_tar_member_that_is_no_file_is_refused_by_name(tmp_path, kind, code):
    linked = member("bad", linkname="run.sh", type=kind)
    problem = refusal(tar_of([(member("run.sh"), b""), (linked, b"")]), tmp_path)
    assert (problem.code, problem.part) == (code, "bad")


def pax(records: bytes, kind: bytes = b"x", size: int | None = None) -> tuple[bytes, bytes]:
    head = header_block(b"PaxHeaders/x", len(records) if size is None else size, kind)
    return head, records


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 != length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


FILE = (header_block(b"x", 3), b"abc")
SCRIPT = (header_block(b"run.sh"), b"")
A, FAR = pax(record(b"path", b"a")), header_block(b"x", size_field=b"\x80" + b"\xff" * 11)


def test_pax_headers_give_names_and_sizes_and_padding_behind_the_end_is_fine(tmp_path):
    named = pax(record(b"path", "dü/x".encode()) + record(b"mtime", b"1.5") + record(b"size", b"3"))
    first, second = pax(record(b"comment", b"0" * 40), b"g"), (header_block(b"other", 0), b"abc")
    expand_bytes(raw_tar(first, SCRIPT, named, second) + bytes(1 << 20), tmp_path, "b.tar")
    expected = {"run.sh": b"", "dü/x": b"abc"}
    assert unpacked(tmp_path / "bundle", tmp_path / "out") == expected


@each(
    ("archive", "code"),
    [
        (raw_tar(SCRIPT, pax(record(b"path", b"a\0b")), FILE), "unsafe_name"),
        (raw_tar(SCRIPT, pax(record(b"path", b"\xff")), FILE), "bad_utf8"),
        (raw_tar(SCRIPT, pax(record(b"path", b"run.sh")), FILE), "duplicate_name"),
        (raw_tar(SCRIPT, (header_block(b"a\xff"), b"")), "bad_utf8"),
        (raw_tar(SCRIPT, pax(record(b"path", b"a") + record(b"path", b"b")), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(record(b"path", b"a"), b"g"), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(record(b"size", b"1"), b"g"), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(record(b"path", b"x" * 8193)), FILE), "huge_header"),
        (raw_tar(SCRIPT, pax(record(b"GNU.sparse.name", b"x" * 8193)), FILE), "huge_header"),
        (raw_tar(SCRIPT, pax(record(b"path", "\u0301".encode() * 4000)), FILE), "unsafe_name"),
        (raw_tar(SCRIPT, pax(record(b"size", b"-1")), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(record(b"GNU.sparse.major", b"1")), FILE), "sparse_file"),
        (raw_tar(SCRIPT, pax(record(b"hdrcharset", b"BINARY")), FILE), "bad_utf8"),
        (raw_tar(SCRIPT, pax(b"999 path=x\n"), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(b"3 x\n"), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(b"nonsense"), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(b"", size=2 << 20), FILE), "huge_header"),
        (raw_tar(SCRIPT, (header_block(b"l", 1 << 30, b"L"), b"")), "huge_header"),
        (raw_tar(SCRIPT, A, (header_block(b"l", 2, b"L"), b"b\0"), FILE), "two_names"),
        (raw_tar(SCRIPT, pax(record(b"size", b"3")), pax(b""), FILE), "damaged"),
        (raw_tar(SCRIPT, pax(record(b"path", b"a"))), "damaged"),
        (raw_tar(SCRIPT, *[pax(b"")] * 5, FILE), "damaged"),
        (raw_tar(SCRIPT, FILE, FILE), "duplicate_name"),
        (raw_tar(SCRIPT, FILE, end=b""), "truncated"),
        (raw_tar(SCRIPT, FILE, end=bytes(512)), "truncated"),
        (raw_tar(SCRIPT, FILE, end=bytes(512) + b"x" * 512), "damaged"),
        (raw_tar(SCRIPT) + raw_tar(FILE), "trailing_data"),
        (raw_tar(SCRIPT) + bytes(512) + b"x", "trailing_data"),
        (raw_tar(SCRIPT) + bytes(5 << 20), "trailing_data"),
        (raw_tar(SCRIPT, (header_block(b"x", 999), b"abc")), "truncated"),
        (raw_tar(SCRIPT, (header_block(b"x", 1 << 32), b"abc")), "too_large"),
        (raw_tar(SCRIPT, (FAR, b"")), "too_large"),
        (raw_tar(SCRIPT, (header_block(b"x", size_field=b"\xff" * 12), b"")), "damaged"),
        (raw_tar(SCRIPT, (header_block(b"x", size_field=b"1_0        \0"), b"")), "damaged"),
        (raw_tar(SCRIPT, (header_block(b"x", 3, b"5"), b"abc")), "lying_header"),
        (raw_tar(SCRIPT, (header_block(b"x/", 3), b"abc")), "lying_header"),
        (raw_tar(SCRIPT, (FILE[0].replace(b"ustar", b"ustaR"), b"abc")), "damaged"),
    ],
)
@each("packed", [False, True])
def test_a_tar_that_plays_tricks_is_refused(tmp_path, archive, code, packed):
    problem = refusal(gzip.compress(archive, 1) if packed else archive, tmp_path)
    assert problem.code == code


def test_what_an_extended_header_gives_away_is_refused_by_name(tmp_path):
    temporary = record(b"path", b"temporary")
    for records, name in (
        (record(b"hdrcharset", b"BINARY") + record(b"path", b"a\xffb"), "a\\xffb"),
        (record(b"GNU.sparse.major", b"1") + temporary, "temporary"),
        (record(b"GNU.sparse.name", b"a") + temporary, "a"),
    ):
        assert refusal(raw_tar(SCRIPT, pax(records), FILE), tmp_path).part == name


@each(
    ("change", "code"),
    [
        (lambda packed: packed[:-1], "truncated"),
        (lambda packed: packed[:-9], "truncated"),
        (lambda packed: packed + b"more", "hidden_data"),
        (lambda packed: packed + packed, "hidden_data"),
        (lambda packed: packed[:-8] + b"\0\0\0\0" + packed[-4:], "damaged"),
        (lambda packed: packed[:-4] + b"\0\0\0\0", "damaged"),
        (lambda packed: packed[:20] + b"\xff\xff\xff\xff" + packed[24:], "damaged"),
    ],
)
def test_a_damaged_or_continued_gzip_is_refused(tmp_path, change, code):
    packed = gzip.compress(raw_tar(SCRIPT, (header_block(b"x", 2000), os.urandom(2000))))
    assert refusal(change(packed), tmp_path).code == code


def sealed(names: list[str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("folder/", b"")
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(name, (2026, 3, 4, 5, 6, 8))
            info.extra = b"UT\x01\x00x" if number % 2 else b""
            archive.writestr(info, b"x" * (number % 7))
    return content.getvalue()


def test_a_scan_finds_what_the_whole_list_has_and_of_a_damaged_one_it_ends(tmp_path):
    names = [f"{'long/' * (one % 9)}ü {one}" if one % 3 else f"{one}" for one in range(4_000)]
    with (tmp_path / "a.zip").open("w+b", buffering=0) as file:
        file.write(sealed(names))
        index = ZipIndex(file.fileno())
        wanted = [ListedFile(one.name, one.size, one.modified) for one, _ in index.files()]
        assert [one[0] for one in wanted] == names
        assert list(index.scan()) == wanted
        good = sealed(["a.txt", "b.txt"])
        for at in (0, 28, 30):  # the signature, the length of the name, that of the extras
            data = bytearray(good)
            data[data.rindex(b"PK\1\2") + at] ^= 0x7F
            file.truncate(0)
            os.pwrite(file.fileno(), data, 0)
            with pytest.raises(BundleError):
                list(ZipIndex(file.fileno()).scan())
