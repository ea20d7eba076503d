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

from shared.files.names import BundleError
from tests.kit.raw_archives import (
    expand_bytes,
    member,
    refusal,
    tar_of,
    tarred,
    trees,
    unpacked,
    without_folder,
    write_bundle,
    zipped,
)

HELLO = {"run.sh": b"echo hello\n", "data/in.txt": b"1 2 3\n"}

BUILDERS = {
    "zip, deflated": zipped,
    "zip, stored": lambda files: zipped(files, zipfile.ZIP_STORED),
    "tar, pax": tarred,
    "tar, gnu": lambda files: tarred(files, form=tarfile.GNU_FORMAT),
    "tar.gz": lambda files: tarred(files, mode="w:gz"),
}


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
        ("x" * 300, "unsafe_name"),
        ("a\u202eb", "unsafe_name"),
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
        (gzip.compress(b"hello" * 500, mtime=0), "damaged"),
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
