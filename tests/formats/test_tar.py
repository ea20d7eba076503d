"""Tars that are uploaded, as they are or in gzip: what is refused of them."""

from __future__ import annotations

import gzip
import os
import tarfile

from tests.kit.each import each
from tests.kit.raw_archives import (
    expand_bytes,
    header_block,
    member,
    raw_tar,
    refusal,
    tar_of,
    unpacked,
)


@each(
    ("kind", "code"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "special_file"),
        (tarfile.BLKTYPE, "special_file"),
        (tarfile.FIFOTYPE, "special_file"),
        (tarfile.GNUTYPE_SPARSE, "sparse_file"),
        (b"M", "split_archive"),
        (b"V", "special_file"),
        (b"D", "special_file"),
        (b"Z", "special_file"),
    ],
)
@each("mode", ["w", "w:gz"])
def test_a_tar_member_that_is_no_file_is_refused_by_name(tmp_path, kind, code, mode):
    linked = member("bad", linkname="run.sh", type=kind)
    problem = refusal(tar_of([(member("run.sh"), b""), (linked, b"")], mode), tmp_path)
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


def test_pax_headers_give_names_and_sizes(tmp_path):
    archive = raw_tar(
        pax(record(b"comment", b"0" * 40), b"g"),
        SCRIPT,
        pax(record(b"path", "dü/x".encode()) + record(b"mtime", b"1.5") + record(b"size", b"3")),
        (header_block(b"other", 0), b"abc"),
    )
    expand_bytes(archive, tmp_path, "b.tar")
    expected = {"run.sh": b"", "dü/x": b"abc"}
    assert unpacked(tmp_path / "bundle", tmp_path / "out") == expected


@each(
    ("archive", "code"),
    [
        (raw_tar(SCRIPT, pax(record(b"path", b"../x")), FILE), "unsafe_name"),
        (raw_tar(SCRIPT, pax(record(b"path", b"/etc/x")), FILE), "unsafe_name"),
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
        (
            raw_tar(
                SCRIPT, pax(record(b"path", b"a")), (header_block(b"l", 2, b"L"), b"b\0"), FILE
            ),
            "two_names",
        ),
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
        (
            raw_tar(SCRIPT, (header_block(b"x", size_field=b"\x80" + b"\xff" * 11), b"")),
            "too_large",
        ),
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


@each(
    ("records", "name"),
    [
        (record(b"hdrcharset", b"BINARY") + record(b"path", b"a\xffb"), "a\\xffb"),
        (record(b"GNU.sparse.major", b"1") + record(b"path", b"temporary"), "temporary"),
        (record(b"GNU.sparse.name", b"a") + record(b"path", b"temporary"), "a"),
    ],
)
def test_what_an_extended_header_gives_away_is_refused_by_name(tmp_path, records, name):
    assert refusal(raw_tar(SCRIPT, pax(records), FILE), tmp_path).part == name


def test_padding_behind_the_end_of_a_tar_is_fine(tmp_path):
    expand_bytes(raw_tar(SCRIPT, FILE) + bytes(1 << 20), tmp_path)
    assert unpacked(tmp_path / "bundle", tmp_path / "out") == {"run.sh": b"", "x": b"abc"}


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


def test_a_gzip_bomb_is_stopped_early(tmp_path):
    bomb = gzip.compress(raw_tar(SCRIPT, (header_block(b"x", 24 << 20), bytes(24 << 20))))
    assert refusal(bomb, tmp_path, max_bytes=1 << 40).code == "bomb"
