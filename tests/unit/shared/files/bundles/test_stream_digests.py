"""Digests that are taken while a bundle comes in."""

from __future__ import annotations

import hashlib
import zipfile

import pytest

from shared.files.archives.zip_directory import read_entries
from shared.files.bundles.stream_digests import StreamDigests
from tests.kit.agent import write_bundle

FILES = {"run.sh": b"true", "empty": b"", "folder/data": bytes(range(256)) * 50, "z": b"z"}
LENGTHS = (1, 30, 2, 31, 4096, 29)


def arrived(path, seed=0, max_files=100):
    """What was learnt of a file that came in pieces of all lengths."""
    data, at = path.read_bytes(), seed
    digests = StreamDigests(max_files)
    while data:
        length, at = LENGTHS[at % len(LENGTHS)], at + 1
        digests.feed(memoryview(data)[:length])
        data = data[length:]
    return digests


def listed(path):
    with path.open("rb") as file:
        return {one.name: one for one in read_entries(file.fileno(), 100)}


@pytest.mark.parametrize("seed", range(len(LENGTHS)))
def test_every_file_is_known_however_the_bytes_come(tmp_path, seed):
    write_bundle(tmp_path / "b", FILES)
    digests = arrived(tmp_path / "b", seed)
    found = {name: digests.sha256(one) for name, one in listed(tmp_path / "b").items()}
    assert found == {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


def test_a_file_whose_bytes_are_not_as_listed_is_to_be_read(tmp_path):
    write_bundle(tmp_path / "b", FILES)
    entries = listed(tmp_path / "b")
    whole = (tmp_path / "b").read_bytes()
    (tmp_path / "b").write_bytes(whole.replace(b"true", b"exit"))
    digests = arrived(tmp_path / "b")
    assert digests.sha256(entries["run.sh"]) is None
    assert digests.sha256(entries["z"]) is not None


def test_an_entry_that_is_not_stored_is_not_known_nor_anything_behind_it(tmp_path):
    with zipfile.ZipFile(tmp_path / "b", "w") as archive:
        archive.writestr("first", b"1" * 100)
        archive.writestr("packed", b"2" * 100, zipfile.ZIP_DEFLATED)
        archive.writestr("last", b"3" * 100)
    digests, entries = arrived(tmp_path / "b"), listed(tmp_path / "b")
    known = [name for name, one in entries.items() if digests.sha256(one)]
    assert known == ["first"]


def test_no_more_files_are_remembered_than_there_may_be(tmp_path):
    write_bundle(tmp_path / "b", FILES)
    digests = arrived(tmp_path / "b", max_files=2)
    assert sum(digests.sha256(one) is not None for one in listed(tmp_path / "b").values()) == 2


def test_bytes_that_are_no_zip_cost_nothing():
    digests = StreamDigests(10)
    digests.feed(b"x" * 100)
    digests.feed(bytes(1 << 20))
    assert digests._files == {}
