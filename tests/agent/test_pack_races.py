"""Directories that change while they are packed, as in snapshots."""

from __future__ import annotations

import errno
import itertools
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_agent.collect import walk
from client_agent.collect.walk import Bounds
from client_agent.storage import open_beneath
from tests.agent.agent_packing import MIB, names, opened, pack, read, skipped
from tests.kit.each import each
from tests.kit.real_sandbox import in_child


def change_after_counting(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    real = walk.Walk.count

    def count(self: walk.Walk, most: int) -> walk.TreeCount:
        count = real(self, most)
        change()
        return count

    monkeypatch.setattr(walk.Walk, "count", count)


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


GROWN = "the results limit was reached meanwhile"
TWICE = "another name here differs only in case or composition"
LATE = "it came while the rest was read, and exceeds a limit"


@each(
    "change, opened_first, kept, left",
    [
        (lambda f: f.write_bytes(b"1" * 1000 + b"2" * 5000), True, 1000, {}),
        (lambda f: os.truncate(f, 300), True, 300, {"f": "cut short: 700 bytes were gone"}),
        (lambda f: f.unlink(), False, None, {"f": "No such file or directory"}),
    ],
)
def test_a_file_that_changes_is_read_to_the_size_first_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    opened_first: bool,
    kept: int | None,
    left: dict[str, str],
) -> None:
    tree = tmp_path / f"job-{kept}" / "job"
    tree.mkdir(parents=True)
    (tree / "f").write_bytes(b"1" * 1000)
    real = open_beneath.open_file

    def changing(parent: int, name: str, seen: os.stat_result, *, may_chmod: bool) -> int:
        fd = real(parent, name, seen) if opened_first else -1
        change(tree / "f")
        return fd if opened_first else real(parent, name, seen)

    with monkeypatch.context() as patch:
        patch.setattr(open_beneath, "open_file", changing)
        made = pack(tree)
    assert names(made) == ([] if kept is None else ["f"]) + ["ferryman.json"]
    assert kept is None or read(made, "f") == b"1" * kept
    assert skipped(made) == left


@each(
    "late, limits, packed, left",
    [
        ({"b": bytes(600)}, {"results": 1000}, ["a"], {"b": GROWN}),
        ({"STDOUT.log": b"theirs"}, {}, ["a", "stdout.log"], {"STDOUT.log": TWICE}),
        ({"x/y/z/f": b""}, {"bounds": Bounds(depth=3)}, ["a", "x/y/z/"], {"x/y/z/f": LATE}),
    ],
)
def test_what_is_made_after_the_count_exceeds_no_limit_and_takes_no_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    late: dict[str, bytes],
    limits: dict[str, Any],
    packed: list[str],
    left: dict[str, str],
) -> None:
    tree = tmp_path / packed[-1].replace("/", "-") / "job"
    tree.mkdir(parents=True)
    (tree / "a").write_bytes(bytes(600))

    def comes() -> None:
        for name, content in late.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(content)

    with monkeypatch.context() as patch:
        change_after_counting(patch, comes)
        made = pack(tree, {"stdout.log": b"log"} if "stdout.log" in packed else {}, **limits)
    assert names(made) == [*packed, "ferryman.json"]
    assert skipped(made) == left
    assert "stdout.log" not in packed or read(made, "stdout.log") == b"log"


def test_names_made_after_the_count_are_not_all_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flood() -> None:
        for i in range(100):
            (tree / f"late{i}").touch()

    change_after_counting(monkeypatch, flood)
    made = pack(tree, bounds=Bounds(entries=10))
    assert (made.files, list(skipped(made).values())) == (10, [LATE])


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
