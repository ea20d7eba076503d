"""Trees of hostile jobs are opened safely and deleted whole; each protection is tested alone."""

import ctypes
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.kernel import mounts
from client_agent.storage import open_beneath
from client_agent.storage.remove_tree import remove_tree
from tests.agent.agent_packing import names, opened, pack, skipped
from tests.kit.child import can, in_child


@pytest.fixture(params=[True, False], ids=["openat2", "openat"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not open_beneath.HAS_OPENAT2:
        pytest.skip("this kernel has no openat2: what it does is not proved")
    monkeypatch.setattr(open_beneath, "HAS_OPENAT2", request.param)


either_way = pytest.mark.usefixtures("_either_way")


def after_the_first_refusal(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[], object] = lambda: None
) -> None:
    """The first open is refused, as for a file without permission; then it changes."""
    real = open_beneath.open_component
    left = [PermissionError(13, "Permission denied")]

    def open_component(parent: int, name: str, flags: int) -> int:
        if left:
            problem = left.pop()
            change()
            raise problem
        return real(parent, name, flags)

    monkeypatch.setattr(open_beneath, "open_component", open_component)


def test_openat2_gets_all_resolve_flags(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some flags imply others, so no attack shows one of them: each must be passed."""
    calls: list[tuple[int, int]] = []

    class Libc:
        @staticmethod
        def syscall(number: int, parent: int, name: bytes, how: Any, size: int) -> int:
            fields = ctypes.cast(how, ctypes.POINTER(ctypes.c_uint64 * 3)).contents
            assert (number, size, fields[1]) == (437, 24, 0)
            calls.append((fields[0], fields[2]))
            return os.open(name, fields[0], dir_fd=parent)

    if not open_beneath.HAS_OPENAT2:
        pytest.skip("this kernel has no openat2: what it does is not proved")
    monkeypatch.setattr(open_beneath, "_libc", Libc)
    (tree / "d").mkdir()
    (tree / "f").write_text("x")
    with opened(tree) as fd:
        os.close(open_beneath.open_file(fd, "f", (tree / "f").stat()))
        os.close(open_beneath.open_directory(fd, "d"))
    no_xdev, no_magiclinks, no_symlinks, stay_beneath = 1, 2, 4, 8
    resolve = no_xdev | no_magiclinks | no_symlinks | stay_beneath
    always = os.O_CLOEXEC | os.O_NOFOLLOW
    assert calls == [
        (always | os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, resolve),
        (always | os.O_RDONLY | os.O_DIRECTORY, resolve),
    ]


@either_way
def test_single_components_never_leave_the_directory_and_are_not_inherited(tree: Path) -> None:
    (tree / "f").write_text("x")
    (tree / "d").mkdir()
    for name, to in (("link", "/etc/passwd"), ("magic", "/proc/self/root"), ("within", "f")):
        (tree / name).symlink_to(to)
    with opened(tree) as fd:
        for found in (
            open_beneath.open_file(fd, "f", (tree / "f").stat()),
            open_beneath.open_directory(fd, "d"),
        ):
            assert not os.get_inheritable(found)
            os.close(found)
        for name in ("link", "magic", "within"):
            with pytest.raises(OSError, match="symbolic links"):
                open_beneath.open_component(fd, name, os.O_RDONLY)
        for name in ("", ".", "..", "a/b", "/etc/passwd"):
            with pytest.raises(ValueError, match="not a single component"):
                open_beneath.open_component(fd, name, os.O_RDONLY)
        with pytest.raises(NotADirectoryError):
            open_beneath.open_directory(fd, "f")
    with opened(Path("/")) as top, pytest.raises(OSError, match="cross-device"):
        open_beneath.open_component(top, "proc", os.O_RDONLY)


@either_way
def test_a_file_that_was_replaced_is_noticed(tree: Path) -> None:
    """Also by a FIFO, which nobody writes to: who waited for that would never end."""
    (tree / "f").write_text("x")
    (tree / "g").write_text("other")
    os.mkfifo(tree / "fifo")
    values = list((tree / "f").stat())
    others = {"of another": (tree / "g").stat()}
    for field in (stat.ST_INO, stat.ST_DEV):
        changed = [value + (at == field) for at, value in enumerate(values)]
        others[f"field {field}"] = os.stat_result(changed)
    with opened(tree) as fd:
        for seen in others.values():
            with pytest.raises(open_beneath.FileReplaced):
                open_beneath.open_file(fd, "f", seen)
        for seen in ((tree / "fifo").lstat(), (tree / "f").stat()):  # a number was used again
            with pytest.raises(open_beneath.FileReplaced):
                open_beneath.open_file(fd, "fifo", seen)


def test_the_modes_of_a_running_jobs_files_stay_as_they_are(tree, monkeypatch) -> None:
    real = open_beneath.open_component

    def refused(parent: int, name: str, flags: int) -> int:
        if flags & os.O_PATH:
            return real(parent, name, flags)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(open_beneath, "open_component", refused)
    (tree / "file").write_bytes(b"")
    (tree / "folder").mkdir()
    for path in tree.iterdir():
        path.chmod(0)
    with opened(tree) as top:
        with pytest.raises(PermissionError):
            open_beneath.open_directory(top, "folder", may_chmod=False)
        with pytest.raises(PermissionError):
            open_beneath.open_file(top, "file", (tree / "file").stat(), may_chmod=False)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tree.iterdir()} == {0}


@either_way
def test_permission_is_not_given_to_the_target_of_a_link(tree, tmp_path, monkeypatch) -> None:
    """It was a file that its owner may not read; now a link lies there."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o400)
    (tree / "f").write_text("x")
    seen = (tree / "f").stat()

    def swap(_: int = 0) -> bool:
        (tree / "f").rename(tree / "moved")
        (tree / "f").symlink_to(secret)
        return True

    with opened(tree) as fd:
        open_beneath._grant_owner_access(fd, "f", swap, 0o600)  # when it was checked already
        assert stat.S_IMODE((tree / "moved").stat().st_mode) == 0o600
        (tree / "moved").replace(tree / "f")
        after_the_first_refusal(monkeypatch, swap)
        with pytest.raises(OSError, match=r"symbolic links|replaced"):
            open_beneath.open_file(fd, "f", seen)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o400


@either_way
def test_permission_is_given_only_to_the_expected_kind_of_file(tree, monkeypatch) -> None:
    os.mkfifo(tree / "f", 0o200)
    with opened(tree) as fd:
        after_the_first_refusal(monkeypatch)
        with pytest.raises(open_beneath.FileReplaced):
            open_beneath.open_file(fd, "f", (tree / "f").lstat())
        after_the_first_refusal(monkeypatch)
        with pytest.raises(open_beneath.FileReplaced):
            open_beneath.open_directory(fd, "f")
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o200


def test_a_tree_without_any_permission_is_deleted() -> None:
    """That it is collected: the bundle res-unreadable."""

    def work(home: Path) -> list[str]:
        deep = home / "job" / "a" / "b"
        deep.mkdir(parents=True)
        for path in (deep, deep.parent, home / "job"):
            path.chmod(0)
        remove_tree(home / "job")
        return os.listdir(home)  # noqa: PTH208  # as names

    assert in_child(work, "user") == []


def test_links_special_files_and_odd_names_are_deleted_and_not_followed(tree, tmp_path) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (kept / "file").write_text("kept")
    for name, to in (("to-folder", kept), ("to-file", kept / "file"), ("loop", "loop")):
        (tree / name).symlink_to(to)
    for number in range(400):
        (tree / f"a{number % 20}" / "b" / f"g{number}").mkdir(parents=True)
        (tree / f"a{number % 20}" / "b" / f"f{number}").write_text("x")
    os.mkfifo(tree / "fifo")
    with opened(tree) as fd:
        for odd in (b"new\nline", b"\xff\xfe", b"-rf", b"x" * 255, b"job.removing.1"):
            os.mkdir(odd, dir_fd=fd)
            file = odd + b"/f" if len(odd) < 200 else odd[:-1]
            os.close(os.open(file, os.O_CREAT, dir_fd=fd))
    (tmp_path / "job.removing.1").mkdir()  # the name that a folder gets which is moved up
    remove_tree(tree)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.removing.1", "kept"]
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "link")
    assert sorted(path.name for path in kept.iterdir()) == ["file", "inner"]
    remove_tree(tmp_path / "nothing")
    remove_tree(tmp_path / "no" / "parent")


def test_a_mount_below_the_tree_is_neither_packed_nor_emptied() -> None:
    if not can("root"):
        pytest.skip("not root: that mounts are left alone is not proved")

    def work(home: Path) -> list[list[str]]:
        mounts.enter_private_namespace(home)
        mnt = home / "tree" / "a" / "mnt"
        mnt.mkdir(parents=True)
        mounts.mount("none", mnt, "tmpfs")
        (mnt / "kept").write_text("kept")
        made = pack(home / "tree")
        with pytest.raises(OSError, match="busy"):
            remove_tree(home / "tree")
        kept = [path.name for path in home.rglob("kept")]
        mounts.unmount(next(home.rglob("mnt")))
        remove_tree(home / "tree")
        return [names(made), [*skipped(made)], kept]

    assert in_child(work, "root") == [["a/", "ferryman.json"], ["a/mnt"], ["kept"]]


def test_a_folder_whose_listing_hides_entries_is_read_again(tmp_path, monkeypatch) -> None:
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
