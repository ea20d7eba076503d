"""Sealed bundles: written, read, their digest, and what is none; limits: test_multipart.py."""

import hashlib
import os
import stat
import zipfile
from contextlib import suppress

import pytest

from shared.files.bundles.reader import BundleReader
from shared.files.bundles.stream_digests import StreamDigests
from shared.files.bundles.writer import BundleWriter
from shared.files.durable import WRITEBACK_BYTES
from shared.files.names import BundleError
from tests.kit.each import each
from tests.kit.raw_archives import Files, RawZip, on_disk, unpacked, write_bundle, zipped
from tests.kit.warm import open_files

HELLO = {"run.sh": b"echo hello\n", "data/in.txt": b"1 2 3\n"}


@each("more", [0, 1])
def test_a_bundle_that_is_kept_in_memory_is_the_same_and_leaves_no_file(tmp_path, more):
    written = write_bundle(tmp_path / "written", HELLO)
    keep = written.size - more  # one byte too few, and it is written after all
    writer = BundleWriter(tmp_path / "kept", max_files=9, max_bytes=99, keep=keep)
    for name, content in HELLO.items():
        writer.add(name)
        writer.write(content)
        writer.end()
    kept = writer.finish()
    assert kept == written
    expected = (tmp_path / "written").read_bytes()
    if more:
        assert kept.content is None
        assert (tmp_path / "kept").read_bytes() == expected
    else:
        assert kept.content == expected
        assert not (tmp_path / "kept").exists()
    writer.abort()
    assert not (tmp_path / "kept").exists()
    (tmp_path / "written").unlink()


def documented(files: Files) -> str:
    lines = "".join(
        f"{hashlib.sha256(files[path]).hexdigest()} {len(files[path])} {path}\n"
        for path in sorted(files, key=str.encode)
    )
    return hashlib.sha256(b"ferryman-bundle 1\n" + lines.encode()).hexdigest()


@each("files", [HELLO, {"run.sh": b"", "\uffff": b"1", "\U00010000": b"2"}])
def test_the_digest_is_the_documented_one_whatever_the_order_and_folder(tmp_path, files):
    in_folder = {f"t/{name}": data for name, data in files.items()}
    for number, sent in enumerate((files, dict(reversed(files.items())), in_folder)):
        assert write_bundle(tmp_path / f"{number}", sent).digest == documented(files)
        (tmp_path / f"{number}").unlink()


def test_scripts_programs_and_folders_are_executable_whatever_the_umask(tmp_path):
    programs = {"run.sh": b"x", "tool": b"#!/usr/bin/awk -f", "bin": b"\x7fELF\2", "marked": b"x"}
    files = programs | {"data": b"# !", "short": b"#", "a/b/empty": b""}
    writer = BundleWriter(tmp_path / "b", max_files=10, max_bytes=100)
    for name, content in files.items():
        writer.add(name, executable=name == "marked")
        for byte in content:  # the first bytes may come one by one
            writer.write(bytes([byte]))
        writer.end()
    writer.finish()
    old = os.umask(0o077)
    try:
        unpacked(tmp_path / "b", tmp_path / "out")
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) for name in files}
    assert modes == {name: 0o755 if name in programs else 0o644 for name in files}
    assert stat.S_IMODE((tmp_path / "out/a/b").stat().st_mode) == 0o755


@pytest.mark.skipif(os.getuid() != 0, reason="not root: that files get their owner is not proved")
def test_everything_unpacked_belongs_to_the_jobs_user(tmp_path):
    write_bundle(tmp_path / "b", {"run.sh": b"", "a/b/c": b""})
    unpacked(tmp_path / "b", tmp_path / "out", uid=12345, gid=12346)
    below = list((tmp_path / "out").rglob("*"))
    assert len(below) == 4
    assert {(p.stat().st_uid, p.stat().st_gid) for p in below} == {(12345, 12346)}


@each(
    ("files", "code", "words"),
    [
        ({}, "no_file", "no file"),
        ({"x": b""}, "no_run_sh", "no run.sh at its root"),
        ({"Run.sh": b""}, "no_run_sh", "“Run.sh” is there, but the script must be run.sh"),
        ({"a/b/run.sh": b""}, "no_run_sh", "“a/b/run.sh” is there"),
        ({"a/run.sh": b"", "b": b""}, "no_run_sh", "“a/run.sh” is there"),
        ({"a/x.zip": b""}, "no_run_sh", "form field named bundle"),
        ({"a": b"", "a/b": b""}, "file_and_folder", "“a” is a file"),
        ({"../x": b""}, "unsafe_name", "“../x”: it contains the component '..'"),
    ],
)
def test_what_cannot_be_a_bundle_is_refused_and_leaves_nothing(tmp_path, files, code, words):
    with pytest.raises(BundleError) as caught:
        write_bundle(tmp_path / "b", files)
    assert caught.value.code == code
    assert words in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_bundles_beyond_the_old_limits_of_zip_can_be_read(tmp_path, monkeypatch):
    files = {f"{i}": b"x" * i for i in range(200)} | {"run.sh": b""}
    plain = write_bundle(tmp_path / "plain", files)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 100)
    (tmp_path / "b").write_bytes(zipped(files, zipfile.ZIP_STORED))
    assert b"PK\6\6" in (tmp_path / "b").read_bytes()  # a ZIP64 end record
    with BundleReader(tmp_path / "b") as reader:
        assert reader.summary().digest == plain.digest
    assert unpacked(tmp_path / "b", tmp_path / "out") == files


@pytest.fixture
def bundle(tmp_path):
    write_bundle(tmp_path / "b", HELLO)
    return tmp_path / "b"


def test_every_damaged_byte_and_every_cut_is_noticed(bundle, tmp_path):
    whole = bundle.read_bytes()
    with BundleReader(bundle) as reader:
        sealed = reader.summary()
    harmless, also_harmless = list[int](), list[int]()
    for at in range(len(whole)):
        (tmp_path / "d").write_bytes(whole[:at])
        with pytest.raises(BundleError):
            BundleReader(tmp_path / "d")
        damaged = whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]
        (tmp_path / "d").write_bytes(damaged)
        (arrived := StreamDigests(9)).feed(damaged)
        for digests, unnoticed in ((None, harmless), (arrived, also_harmless)):
            with suppress(BundleError), BundleReader(tmp_path / "d") as reader:
                if reader.summary(digests).digest == sealed.digest:
                    unnoticed.append(at)
    assert also_harmless == harmless  # what arrived is compared with what the bundle lists
    # What may differ is what nobody reads: times, versions, most of the local headers.
    for content in HELLO.values():
        start = whole.index(content)
        assert not {*range(start, start + len(content))} & {*harmless}
    assert len(harmless) < len(whole) // 2


def test_damage_and_another_digest_than_promised_are_noticed_while_unpacking(bundle, tmp_path):
    with pytest.raises(BundleError) as caught:
        BundleReader(bundle, max_files=1)
    assert caught.value.code == "too_many_files"
    with pytest.raises(BundleError) as caught:
        unpacked(bundle, tmp_path / "out", digest="0" * 64)
    assert caught.value.code == "digest_mismatch"
    bundle.write_bytes(bundle.read_bytes().replace(b"echo hello", b"echo jello"))
    with pytest.raises(BundleError) as caught:
        unpacked(bundle, tmp_path / "other")
    assert (caught.value.code, caught.value.part) == ("bad_checksum", "run.sh")


def raw(*names: bytes) -> RawZip:
    archive = RawZip()
    for name in names:
        archive.add(name, b"")
    return archive


UNSAFE = ["../x", "/x", "a\\b", "a//b", "e\u0301", "a\u202eb"]


@each(
    ("archive", "code", "part"),
    [
        *((raw(b"run.sh", name.encode()).bytes(), "unsafe_name", name) for name in UNSAFE),
        (zipped(HELLO), "not_sealed", None),
        (raw(b"run.sh").add(b"d/", b"", mode=0o040755).bytes(), "not_sealed", None),
        (raw(b"run.sh", b"run.sh").bytes(), "duplicate_name", "run.sh"),
        (raw(b"run.sh", b"run.sh/x").bytes(), "file_and_folder", "run.sh/x"),
        (raw(b"x").bytes(), "no_run_sh", None),
        (RawZip().bytes(), "no_file", None),
        (b"", "truncated", None),
        (b"x" * 100, "truncated", None),
    ],
)
def test_what_is_no_sealed_bundle_is_not_opened(tmp_path, archive, code, part):
    (tmp_path / "b").write_bytes(archive)
    with pytest.raises(BundleError) as caught:
        BundleReader(tmp_path / "b")
    assert caught.value.code == code
    assert part in (None, caught.value.part)


@each("trap", ["run.sh", "data"])
def test_unpacking_follows_no_link_that_is_in_the_way(bundle, tmp_path, trap):
    outside, out = tmp_path / f"outside {trap}", tmp_path / f"out {trap}"
    outside.mkdir()
    out.mkdir()
    (outside / "run.sh").write_text("precious")
    (out / trap).symlink_to(outside / trap if trap == "run.sh" else outside)
    before = open_files()
    fd = os.open(out, os.O_RDONLY)
    with BundleReader(bundle) as reader, pytest.raises(FileExistsError):
        reader.unpack(fd)
    os.close(fd)
    assert on_disk(outside) == {"run.sh": b"precious"}
    unpacked(bundle, out)
    assert open_files() == before, "left open"


def test_one_file_can_be_streamed(tmp_path):
    content = os.urandom(300_000)
    write_bundle(tmp_path / "b", {"run.sh": b"", "data/big": content})
    with BundleReader(tmp_path / "b") as reader:
        pieces = list(reader.content("data/big", 1000))
        with pytest.raises(KeyError):
            reader.content("nothing", 1000)
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) == 1000


def test_a_sealed_bundle_is_on_the_disk_with_its_last_byte(tmp_path, monkeypatch):
    """A large file is before."""
    synced, begun, real = [], [], os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_size)

    def start(_: int, at: int, length: int) -> None:
        begun.append((at, at + length))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr("shared.files.staged_file.start_writeback", start)
    files = HELLO | {"big": bytes(3 * WRITEBACK_BYTES)}
    sealed = write_bundle(tmp_path / "b", files)
    assert synced == [sealed.size]
    assert (len(begun), begun[0][0]) == (2, 0)  # the rest bypasses the page cache
    assert begun[0][1] == begun[1][0]
    with zipfile.ZipFile(tmp_path / "b") as archive:
        assert archive.testzip() is None, "other programs can open it"
        assert {one.compress_type for one in archive.infolist()} == {zipfile.ZIP_STORED}
