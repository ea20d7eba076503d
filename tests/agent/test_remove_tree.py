"""Deletion works on every tree that a job can make."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client_agent.sandbox.kernel import mounts
from client_agent.storage.remove_tree import remove_tree
from tests.kit.real_sandbox import Who, can, in_child


def nest(top: Path, levels: int) -> None:
    """``levels`` folders, each in the one before: deeper than any path may be long."""
    parent = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=parent)
        below = os.open("d", os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=parent))
    os.close(parent)


def test_five_thousand_nested_folders_are_deleted(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    nest(tree, 5000)
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_a_wide_and_deep_tree_is_deleted(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for i in range(20):
        folder = tree / f"a{i}" / "b" / "c"
        folder.mkdir(parents=True)
        for j in range(20):
            (folder / f"f{j}").write_text("x")
            (folder.parent / f"g{j}").mkdir()
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_symlinks_are_deleted_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "to-folder").symlink_to(kept)
    (tree / "to-file").symlink_to(kept / "file")
    (tree / "loop").symlink_to("loop")
    remove_tree(tree)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").read_text() == "kept"


def test_a_symlink_in_place_of_the_tree_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (tmp_path / "tree").symlink_to(kept)
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "tree")
    assert (kept / "inner").is_dir()


def test_special_files_and_odd_names_are_deleted(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mkfifo(tree / "fifo")
    fd = os.open(tree, os.O_RDONLY)
    for name in (b"new\nline", b"\xff\xfe", b"-rf", b"x" * 255, b"tree.removing.1"):
        os.mkdir(name, dir_fd=fd)
        os.close(os.open(name + b"/f" if len(name) < 200 else name[:-1], os.O_CREAT, dir_fd=fd))
    os.close(fd)
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_the_name_of_a_moved_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree.removing.1").mkdir()
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["tree.removing.1"]


@pytest.mark.parametrize("who", ["root", "user"])
def test_folders_that_forbid_everything_are_deleted(who: Who) -> None:
    if not can(who):
        pytest.skip("not root: what a root agent can delete is not proved")

    def work(home: Path) -> list[str]:
        folder = home / "tree" / "a" / "b" / "c"
        folder.mkdir(parents=True)
        (folder / "f").write_text("x")
        for path in (folder / "f", folder, folder.parent, folder.parent.parent, home / "tree"):
            path.chmod(0)
        remove_tree(home / "tree")
        return [path.name for path in home.iterdir()]

    assert in_child(work, who) == []


def test_a_tree_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")
    remove_tree(tmp_path / "no" / "parent")
    assert list(tmp_path.iterdir()) == []


def test_a_mount_below_the_tree_is_neither_entered_nor_emptied() -> None:
    if not can("root"):
        pytest.skip("not root: that mounts are left alone is not proved")

    def work(home: Path) -> list[str]:
        mounts.enter_private_namespace(home)
        (home / "tree" / "a" / "mnt").mkdir(parents=True)
        mounts.mount("none", home / "tree" / "a" / "mnt", "tmpfs")
        (home / "tree" / "a" / "mnt" / "kept").write_text("kept")
        with pytest.raises(OSError, match="busy"):
            remove_tree(home / "tree")
        kept = [path.name for path in home.rglob("kept")]
        mounts.unmount(next(home.rglob("mnt")))
        remove_tree(home / "tree")
        return kept

    assert in_child(work, "root") == ["kept"]


def test_a_folder_whose_listing_hides_entries_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing may leave out what lies behind a deleted entry."""
    for i in range(10):
        (tmp_path / "tree" / f"d{i}").mkdir(parents=True)
    real = os.scandir

    @contextmanager
    def first_few(fd: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(fd) as entries:
            yield itertools.islice(entries, 3)

    monkeypatch.setattr(os, "scandir", first_few)
    remove_tree(tmp_path / "tree")
    assert os.listdir(tmp_path) == []  # noqa: PTH208  # pathlib would list the first few
