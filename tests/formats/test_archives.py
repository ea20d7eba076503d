"""Archives of both kinds, on their way into a bundle."""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile

from tests.kit.cost import peak
from tests.kit.each import each
from tests.kit.raw_archives import (
    expand_bytes,
    member,
    refusal,
    tar_of,
    tarred,
    unpacked,
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


@each("kind", BUILDERS)
def test_archives_of_the_same_files_have_the_digest_of_those_files(tmp_path, kind):
    plain = write_bundle(tmp_path / "plain", HELLO)
    assert expand_bytes(BUILDERS[kind](HELLO), tmp_path).digest == plain.digest
    (tmp_path / "plain").unlink()


@each("build", [zipped, tarred, lambda files: tarred(files, "w:gz")])
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


@each("build", [zipped, tarred])
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


@each(
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
    content = os.urandom(1 << 20) * 9
    expand_bytes(zipped({"run.sh": content}), tmp_path)  # warm up, and what imports cost
    tar = tarred({"run.sh": content}, "w:gz")
    _, most = peak(lambda: expand_bytes(tar, tmp_path))
    assert most < 6 << 20
