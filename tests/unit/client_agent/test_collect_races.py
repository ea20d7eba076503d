"""Directories that change while they are collected: snapshots, and jobs that try to be quick."""

from __future__ import annotations

import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent import beneath, walk
from client_agent.walk import Bounds
from tests.support.packing import MIB, names, opened, pack, read, skipped
from tests.support.sandboxed import in_child


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    return made


def test_a_link_put_in_place_of_a_folder_is_not_followed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the opening, as a running job could."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (tree / "d").mkdir()
    real = beneath.open_directory

    def swapped(parent: int, name: str) -> int:
        (tree / "d").rmdir()
        (tree / "d").symlink_to(tmp_path / "secret")
        return real(parent, name)

    with opened(tree) as fd:
        monkeypatch.setattr(beneath, "open_directory", swapped)
        left: dict[str, str] = {}
        packed = list(walk.Walk(fd, Bounds()).entries(left.__setitem__))
    assert packed == []
    assert left == {"d": "Not a directory"}


@pytest.mark.parametrize("with_openat2", [True, False])
def test_single_components_never_lead_elsewhere(
    tree: Path, with_openat2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beneath, "HAS_OPENAT2", with_openat2 and beneath.HAS_OPENAT2)
    (tree / "link").symlink_to("/etc/passwd")
    (tree / "magic").symlink_to("/proc/self/root")
    (tree / "f").write_text("x")
    with opened(tree) as fd:
        os.close(beneath.open_component(fd, "f", os.O_RDONLY))
        for name in ("link", "magic"):
            with pytest.raises(OSError, match="symbolic links"):
                beneath.open_component(fd, name, os.O_RDONLY)
        for name in ("", ".", "..", "a/b", "/etc/passwd"):
            with pytest.raises(ValueError, match="not a single component"):
                beneath.open_component(fd, name, os.O_RDONLY)
    proc = os.open("/", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="cross-device"):
            beneath.open_component(proc, "proc", os.O_RDONLY)
    finally:
        os.close(proc)


def test_a_file_replaced_by_a_fifo_is_noticed_without_blocking(tree: Path) -> None:
    (tree / "f").write_text("x")
    seen = (tree / "f").lstat()
    (tree / "f").unlink()
    os.mkfifo(tree / "f")
    with opened(tree) as fd, pytest.raises(beneath.Changed):
        beneath.open_file(fd, "f", seen)


def test_a_file_replaced_by_another_is_noticed(tree: Path) -> None:
    (tree / "f").write_text("x")
    (tree / "g").write_text("other")
    seen = (tree / "f").lstat()
    (tree / "g").rename(tree / "f")
    with opened(tree) as fd, pytest.raises(beneath.Changed):
        beneath.open_file(fd, "f", seen)


def test_a_file_that_grows_is_read_to_the_size_first_seen(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "f").write_bytes(b"1" * 1000)
    change_before_reading(monkeypatch, lambda: (tree / "f").write_bytes(b"1" * 1000 + b"2" * 5000))
    made = pack(tree)
    assert read(made, "f") == b"1" * 1000
    assert made.skipped == []


def test_a_file_that_shrinks_is_packed_as_far_as_it_goes_and_listed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "f").write_bytes(b"1" * 1000)
    change_before_reading(monkeypatch, lambda: os.truncate(tree / "f", 300))
    made = pack(tree)
    assert read(made, "f") == b"1" * 300
    assert skipped(made) == {"f": "cut short: 700 bytes were gone"}


def test_a_file_that_vanishes_is_listed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "f").write_bytes(b"1" * 1000)
    real = beneath.open_file

    def late(parent: int, name: str, seen: os.stat_result) -> int:
        (tree / "f").unlink()
        return real(parent, name, seen)

    monkeypatch.setattr(beneath, "open_file", late)
    made = pack(tree)
    assert names(made) == ["ferryman.json"]
    assert skipped(made) == {"f": "No such file or directory"}


def test_a_directory_that_grows_after_the_count_cannot_pass_the_limit(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "a").write_bytes(bytes(600))
    real = walk.Walk.count

    def count(self: walk.Walk, most: int) -> walk.Census:
        census = real(self, most)
        (tree / "b").write_bytes(bytes(600))
        return census

    monkeypatch.setattr(walk.Walk, "count", count)
    made = pack(tree, results=1000)
    assert names(made) == ["a", "ferryman.json"]
    assert skipped(made) == {"b": "the results limit was reached meanwhile"}


def change_before_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    real = beneath.open_file

    def then_changed(parent: int, name: str, seen: os.stat_result) -> int:
        fd = real(parent, name, seen)
        change()
        return fd

    monkeypatch.setattr(beneath, "open_file", then_changed)


def test_a_snapshot_of_a_busy_directory_is_a_whole_zip(tree: Path) -> None:
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
