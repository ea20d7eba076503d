from __future__ import annotations

import gzip
import os
import stat
import tarfile
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.bundle import BundleError, BundleReader
from tests.unit.shared.files.building import (
    RawZip,
    deflated,
    expand_bytes,
    header_block,
    member,
    raw_tar,
    tar_of,
    tarred,
    trees,
    unpacked,
    without_folder,
    write_bundle,
    zipped,
)

HELLO = {"run.sh": b"echo hello\n", "data/in.txt": b"1 2 3\n"}
RUN = header_block(b"run.sh")

BUILDERS = {
    "zip, deflated": zipped,
    "zip, stored": lambda files: zipped(files, zipfile.ZIP_STORED),
    "tar, pax": tarred,
    "tar, gnu": lambda files: tarred(files, form=tarfile.GNU_FORMAT),
    "tar.gz": lambda files: tarred(files, mode="w:gz"),
}


def refusal(archive: bytes, folder, **limits) -> BundleError:
    """The refusal, after which nothing is left."""
    with pytest.raises(BundleError) as caught:
        expand_bytes(archive, folder, **limits)
    assert [path.name for path in folder.iterdir()] == ["archive"]
    assert caught.value.part is not None
    assert caught.value.message.startswith("“")
    return caught.value


@pytest.mark.parametrize("kind", BUILDERS)
@given(files=trees())
def test_what_goes_into_an_archive_comes_out_of_the_bundle(tmp_path_factory, kind, files):
    folder = tmp_path_factory.mktemp("archive")
    sealed = expand_bytes(BUILDERS[kind](files), folder)
    assert unpacked(folder / "bundle", folder / "out") == without_folder(files)
    assert sealed.files == len(files)


@pytest.mark.parametrize("kind", BUILDERS)
def test_archives_of_the_same_files_have_the_digest_of_those_files(tmp_path, kind):
    plain = write_bundle(tmp_path / "plain", HELLO)
    assert expand_bytes(BUILDERS[kind](HELLO), tmp_path).digest == plain.digest


@pytest.mark.parametrize("kind", BUILDERS)
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_read_but_breaks_nothing(tmp_path_factory, kind, data):
    archive = bytearray(BUILDERS[kind](HELLO | {"a" * 120: b"x" * 600}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(archive) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat", "drop"]))
        if action == "flip":
            archive[at] = data.draw(st.integers(0, 255))
        elif action == "cut":
            del archive[max(1, at) :]
        elif action == "insert":
            archive[at:at] = data.draw(st.binary(min_size=1, max_size=30))
        elif action == "repeat":
            archive[at:at] = archive[at : at + 600]
        else:
            del archive[at : min(at + 40, len(archive) - 1)]
    folder = tmp_path_factory.mktemp("damaged")
    try:
        expand_bytes(bytes(archive), folder)
    except BundleError as problem:
        problem.message.encode()
        assert [path.name for path in folder.iterdir()] == ["archive"]
    else:
        unpacked(folder / "bundle", folder / "out")


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_cut_of_an_archive_is_noticed(tmp_path, kind):
    archive = BUILDERS[kind](HELLO)
    # tar: without its end mark; further padding may be missing
    last = len(archive) if "tar," not in kind else len(archive.rstrip(b"\0")) + 1024
    for length in range(0, last, 7):
        refusal(archive[:length], tmp_path)


# ---------------------------------------------------------------------------- both kinds


@pytest.mark.parametrize("build", [zipped, tarred])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("/etc/cron.d/x", "unsafe_name"),
        ("../x", "unsafe_name"),
        ("d/../../x", "unsafe_name"),
        ("a\\b", "unsafe_name"),
        ("a\nb", "unsafe_name"),
        ("nul", "unsafe_name"),
        ("x" * 300, "unsafe_name"),
        ("RUN.SH", "case_clash"),
        ("run.sh/x", "file_and_folder"),
        ("__MACOSX/../x", "unsafe_name"),
    ],
)
def test_an_unsafe_name_is_refused_by_name(tmp_path, build, name, code):
    problem = refusal(build({"run.sh": b"", name: b"x"}), tmp_path)
    assert (problem.code, problem.part) == (code, name)


@pytest.mark.parametrize("build", [zipped, tarred, lambda files: tarred(files, "w:gz")])
def test_too_many_files_or_bytes_are_refused(tmp_path, build):
    files = {f"d/{i}": b"x" * 100 for i in range(10)} | {"run.sh": b""}
    assert refusal(build(files), tmp_path, max_files=10).code == "too_many_files"
    assert refusal(build(files), tmp_path, max_bytes=999).code == "too_large"
    assert expand_bytes(build(files), tmp_path, max_files=11, max_bytes=1000).files == 11


def test_folders_and_what_is_left_out_are_bounded_too(tmp_path):
    folders = tar_of([(member(f"{i}", type=tarfile.DIRTYPE), b"") for i in range(1100)])
    assert refusal(folders, tmp_path, max_files=10).code == "too_many_files"
    litter = zipped({f"__MACOSX/{i}": b"x" * 100 for i in range(20)} | {"run.sh": b""})
    assert refusal(litter, tmp_path, max_bytes=1999).code == "too_large"


def test_the_executable_bit_is_kept(tmp_path):
    info = zipfile.ZipInfo("tool")
    info.external_attr = 0o100755 << 16
    script = zipfile.ZipInfo("data")
    script.external_attr = 0o100644 << 16
    with zipfile.ZipFile(tmp_path / "z", "w") as archive:
        archive.writestr(info, b"x")
        archive.writestr(script, b"x")
        archive.writestr("run.sh", b"")
    tar = tar_of(
        [
            (member("tool", mode=0o4755, size=1), b"x"),
            (member("data", mode=0o640, size=1), b"x"),
            (member("run.sh"), b""),
        ]
    )
    for i, archive_bytes in enumerate([(tmp_path / "z").read_bytes(), tar]):
        folder = tmp_path / str(i)
        folder.mkdir()
        expand_bytes(archive_bytes, folder)
        unpacked(folder / "bundle", folder / "out")
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder / "out").iterdir()}
        assert modes == {"tool": 0o755, "data": 0o644, "run.sh": 0o755}


def test_folders_are_ignored_and_a_leading_dot_is_dropped(tmp_path):
    tar = tar_of(
        [
            (member("./", type=tarfile.DIRTYPE, mode=0), b""),
            (member("./d", type=tarfile.DIRTYPE), b""),
            (member("./d/", type=tarfile.DIRTYPE), b""),
            (member("./d/x"), b""),
            (member("./run.sh"), b""),
        ]
    )
    expand_bytes(tar, tmp_path)
    assert set(unpacked(tmp_path / "bundle", tmp_path / "out")) == {"d/x", "run.sh"}


@pytest.mark.parametrize("build", [zipped, tarred])
def test_what_macos_adds_is_left_out(tmp_path, build):
    double = b"\x00\x05\x16\x07" + bytes(20)
    files = {
        "._top": double,
        "top/run.sh": b"",
        "top/._run.sh": double,
        "top/._mine": b"not AppleDouble",
        "top/.DS_Store": b"x",
        "top/a.DS_Store": b"x",
        "__MACOSX/top/._run.sh": double,
        "__MACOSX/x": b"x",
    }
    expand_bytes(build(files), tmp_path)
    kept = unpacked(tmp_path / "bundle", tmp_path / "out")
    assert set(kept) == {"run.sh", "._mine", "a.DS_Store"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no archive"),
        (b"hello" * 200, "no archive"),
        (b"BZh91AY", "bzip2 archives are not read"),
        (b"\xfd7zXZ\0", "xz archives"),
        (bytes(10240), "no archive"),
        (gzip.compress(b"hello" * 500), "damaged"),
    ],
)
def test_what_is_no_archive_is_refused_by_its_content(tmp_path, content, words):
    problem = refusal(content, tmp_path)
    assert problem.part == "bundle.zip"
    assert words in problem.message


def test_expanding_keeps_memory_flat(tmp_path):
    content = os.urandom(1 << 20) * 12
    tar = tarred({"run.sh": content}, "w:gz")
    tracemalloc.start()
    try:
        expand_bytes(zipped({"run.sh": content}), tmp_path)  # warm up, and what imports cost
        (tmp_path / "bundle").unlink()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        expand_bytes(tar, tmp_path)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


# ---------------------------------------------------------------------------- zip


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


# ---------------------------------------------------------------------------- tar


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("mode", ["w", "w:gz"])
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
SCRIPT = (RUN, b"")


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


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("packed", [False, True])
def test_a_tar_that_plays_tricks_is_refused(tmp_path, archive, code, packed):
    problem = refusal(gzip.compress(archive, 1) if packed else archive, tmp_path)
    assert problem.code == code


def test_padding_behind_the_end_of_a_tar_is_fine(tmp_path):
    expand_bytes(raw_tar(SCRIPT, FILE) + bytes(1 << 20), tmp_path)


@pytest.mark.parametrize(
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
    bomb = gzip.compress(raw_tar(SCRIPT, (header_block(b"x", 64 << 20), bytes(64 << 20))))
    assert refusal(bomb, tmp_path, max_bytes=1 << 40).code == "bomb"
