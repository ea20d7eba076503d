"""Directories that change while they are packed, as in snapshots."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent.collect import walk
from client_agent.collect.walk import Bounds
from client_agent.storage import open_beneath
from tests.agent.agent_packing import MIB, names, opened, pack, read, skipped
from tests.kit.real_sandbox import in_child


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    return made


def test_a_link_put_in_place_of_a_folder_is_not_followed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change happens between stat and open, as a running job could do it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (tree / "d").mkdir()
    real = open_beneath.open_directory

    def swapped(parent: int, name: str, *, may_chmod: bool) -> int:
        (tree / "d").rmdir()
        (tree / "d").symlink_to(tmp_path / "secret")
        return real(parent, name)

    with opened(tree) as fd:
        monkeypatch.setattr(open_beneath, "open_directory", swapped)
        left: dict[str, str] = {}
        packed = list(walk.Walk(fd, Bounds()).entries(left.__setitem__))
    assert packed == []
    assert left == {"d": "Not a directory"}


@pytest.mark.parametrize("with_openat2", [True, False])
def test_single_components_never_leave_the_directory(
    tree: Path, with_openat2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_beneath, "HAS_OPENAT2", with_openat2 and open_beneath.HAS_OPENAT2)
    (tree / "link").symlink_to("/etc/passwd")
    (tree / "magic").symlink_to("/proc/self/root")
    (tree / "f").write_text("x")
    with opened(tree) as fd:
        os.close(open_beneath.open_component(fd, "f", os.O_RDONLY))
        for name in ("link", "magic"):
            with pytest.raises(OSError, match="symbolic links"):
                open_beneath.open_component(fd, name, os.O_RDONLY)
        for name in ("", ".", "..", "a/b", "/etc/passwd"):
            with pytest.raises(ValueError, match="not a single component"):
                open_beneath.open_component(fd, name, os.O_RDONLY)
    proc = os.open("/", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="cross-device"):
            open_beneath.open_component(proc, "proc", os.O_RDONLY)
    finally:
        os.close(proc)


def test_a_file_replaced_by_another_is_noticed(tree: Path) -> None:
    (tree / "f").write_text("x")
    (tree / "g").write_text("other")
    seen = (tree / "f").lstat()
    (tree / "g").rename(tree / "f")
    with opened(tree) as fd, pytest.raises(open_beneath.FileReplaced):
        open_beneath.open_file(fd, "f", seen)


def test_a_file_that_grows_is_read_to_the_size_first_seen(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "f").write_bytes(b"1" * 1000)
    change_before_reading(monkeypatch, lambda: (tree / "f").write_bytes(b"1" * 1000 + b"2" * 5000))
    made = pack(tree)
    assert read(made, "f") == b"1" * 1000
    assert made.skipped == []


def test_a_file_that_shrinks_is_packed_to_its_new_end_and_listed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "f").write_bytes(b"1" * 1000)
    change_before_reading(monkeypatch, lambda: os.truncate(tree / "f", 300))
    made = pack(tree)
    assert read(made, "f") == b"1" * 300
    assert skipped(made) == {"f": "cut short: 700 bytes were gone"}


def test_a_file_that_the_disk_cannot_read_to_its_end_is_listed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "f").write_bytes(b"1" * MIB)
    real, calls = os.read, itertools.count()

    def failing(fd: int, length: int) -> bytes:
        if next(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, length)

    monkeypatch.setattr(os, "read", failing)
    made = pack(tree)
    monkeypatch.undo()
    assert read(made, "f") == b"1" * (MIB // 2)
    assert skipped(made) == {"f": "cut short: Input/output error"}


def test_a_file_that_vanishes_is_listed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "f").write_bytes(b"1" * 1000)
    real = open_beneath.open_file

    def late(parent: int, name: str, seen: os.stat_result, *, may_chmod: bool) -> int:
        (tree / "f").unlink()
        return real(parent, name, seen)

    monkeypatch.setattr(open_beneath, "open_file", late)
    made = pack(tree)
    assert names(made) == ["ferryman.json"]
    assert skipped(made) == {"f": "No such file or directory"}


def test_a_directory_that_grows_after_the_count_cannot_exceed_the_limit(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "a").write_bytes(bytes(600))
    change_after_counting(monkeypatch, lambda: (tree / "b").write_bytes(bytes(600)))
    made = pack(tree, results=1000)
    assert names(made) == ["a", "ferryman.json"]
    assert skipped(made) == {"b": "the results limit was reached meanwhile"}


def change_after_counting(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    real = walk.Walk.count

    def count(self: walk.Walk, most: int) -> walk.TreeCount:
        count = real(self, most)
        change()
        return count

    monkeypatch.setattr(walk.Walk, "count", count)


def change_before_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    real = open_beneath.open_file

    def then_changed(parent: int, name: str, seen: os.stat_result, *, may_chmod: bool) -> int:
        fd = real(parent, name, seen)
        change()
        return fd

    monkeypatch.setattr(open_beneath, "open_file", then_changed)


def test_a_snapshot_of_a_changing_directory_is_a_valid_zip(tree: Path) -> None:
    """Something creates, grows, truncates, renames and deletes as fast as it can."""
    stop = threading.Event()

    def busy() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            folder = tree / f"d{i % 7}"
            folder.mkdir(exist_ok=True)
            path = folder / f"f{i % 13}"
            path.write_bytes(bytes(i % 50_000))
            if i % 3 == 0:
                path.unlink()
            if i % 11 == 0:
                shutil.rmtree(folder, ignore_errors=True)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for i in range(15):
            made = pack(tree, name=f"{i}.zip")
            assert "ferryman.json" in names(made)
    finally:
        stop.set()
        thread.join()


def test_memory_does_not_grow_with_the_size_of_a_file(tree: Path) -> None:
    def work(home: Path) -> int:
        (home / "job").mkdir()
        with (home / "job" / "f").open("wb") as file:
            file.truncate(192 * MIB)
        tracemalloc.start()
        pack(home / "job", results=1 << 30)
        return tracemalloc.get_traced_memory()[1]

    assert in_child(work, "user") < 8 * MIB


def test_other_readers_of_the_directory_do_not_take_names_from_the_result(tree: Path) -> None:
    """Two descriptors that are copies share their place in the listing."""
    for i in range(3000):  # more than the kernel gives out at once
        (tree / f"a-rather-long-name-{i:05}").touch()
    with opened(tree) as fd, os.scandir(fd) as other:
        next(other)
        left: dict[str, str] = {}
        walked = walk.Walk(fd, Bounds())
        assert walked.count(MIB).entries == 3000
        next(other)
        assert len(list(walked.entries(left.__setitem__))) == 3000


def test_names_made_after_the_count_are_not_all_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flood() -> None:
        for i in range(100):
            (tree / f"late{i}").touch()

    change_after_counting(monkeypatch, flood)
    made = pack(tree, bounds=Bounds(entries=10))
    assert made.files == 10
    assert list(skipped(made).values()) == ["it came while the rest was read, and exceeds a limit"]


def test_folders_made_after_the_count_are_not_entered_beyond_the_limit(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_after_counting(monkeypatch, lambda: (tree / "a" / "b" / "c" / "d").mkdir(parents=True))
    made = pack(tree, bounds=Bounds(depth=3))
    assert names(made) == ["a/b/c/", "ferryman.json"]
    assert skipped(made) == {"a/b/c/d": "it came while the rest was read, and exceeds a limit"}


def test_a_file_made_after_the_count_does_not_get_the_name_of_an_agents_file(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_after_counting(monkeypatch, lambda: (tree / "STDOUT.log").write_text("theirs"))
    made = pack(tree, {"stdout.log": b"log"})
    assert names(made) == ["stdout.log", "ferryman.json"]
    assert read(made, "stdout.log") == b"log"
    assert list(skipped(made)) == ["STDOUT.log"]
