"""Files of a hostile job are opened safely; each protection is tested alone."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_agent.collect.walk import Bounds, Walk
from client_agent.storage import open_beneath
from tests.agent.agent_packing import names, opened, pack, read
from tests.kit.real_sandbox import Who, can, in_child


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    return made


@pytest.fixture(params=[True, False], ids=["openat2", "openat"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not open_beneath.HAS_OPENAT2:
        pytest.skip("this kernel has no openat2: what it does is not proved")
    monkeypatch.setattr(open_beneath, "HAS_OPENAT2", request.param)


def after_the_first_refusal(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[], None] = lambda: None
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


@pytest.mark.usefixtures("_either_way")
def test_a_link_within_the_directory_is_not_followed(tree: Path) -> None:
    (tree / "f").write_text("x")
    (tree / "link").symlink_to("f")
    with opened(tree) as fd, pytest.raises(OSError, match="symbolic links"):
        open_beneath.open_component(fd, "link", os.O_RDONLY)


@pytest.mark.usefixtures("_either_way")
def test_descriptors_are_not_inherited_by_other_programs(tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "f").write_text("x")
    with opened(tree) as fd:
        for found in (
            open_beneath.open_file(fd, "f", (tree / "f").stat()),
            open_beneath.open_directory(fd, "d"),
        ):
            assert not os.get_inheritable(found)
            os.close(found)


@pytest.mark.usefixtures("_either_way")
def test_a_fifo_in_place_of_a_file_does_not_block_the_collector(tree: Path) -> None:
    (tree / "f").write_text("x")
    seen = (tree / "f").stat()
    (tree / "f").unlink()
    os.mkfifo(tree / "f")
    problems: list[BaseException] = []

    def collecting() -> None:
        with opened(tree) as fd:
            try:
                os.close(open_beneath.open_file(fd, "f", seen))
            except OSError as problem:
                problems.append(problem)

    thread = threading.Thread(target=collecting)
    thread.start()
    thread.join(10)
    stuck = thread.is_alive()
    if stuck:
        os.close(os.open(tree / "f", os.O_WRONLY))  # so that the test can end
        thread.join()
    assert not stuck
    assert isinstance(problems[0], open_beneath.FileReplaced)


def test_the_modes_of_a_running_jobs_files_stay_as_they_are(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.usefixtures("_either_way")
def test_a_file_in_place_of_a_folder_is_not_opened(tree: Path) -> None:
    (tree / "d").write_text("x")
    with opened(tree) as fd, pytest.raises(NotADirectoryError):
        open_beneath.open_directory(fd, "d")


@pytest.mark.usefixtures("_either_way")
def test_an_inode_number_that_was_used_again_does_not_make_a_fifo_a_file(tree: Path) -> None:
    os.mkfifo(tree / "f")
    seen = (tree / "f").lstat()  # number and device are those of what was a file
    with opened(tree) as fd, pytest.raises(open_beneath.FileReplaced):
        open_beneath.open_file(fd, "f", seen)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("field", [stat.ST_INO, stat.ST_DEV])
def test_another_inode_number_or_device_is_another_file(tree: Path, field: int) -> None:
    (tree / "f").write_text("x")
    values = list((tree / "f").stat())
    values[field] += 1
    with opened(tree) as fd, pytest.raises(open_beneath.FileReplaced):
        open_beneath.open_file(fd, "f", os.stat_result(values))


@pytest.mark.usefixtures("_either_way")
def test_permission_is_not_given_to_the_target_of_a_link(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a file that its owner may not read; now a link lies there."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o400)
    (tree / "f").write_text("x")
    seen = (tree / "f").stat()

    def swap() -> None:
        (tree / "f").unlink()
        (tree / "f").symlink_to(secret)

    after_the_first_refusal(monkeypatch, swap)
    with opened(tree) as fd, pytest.raises(OSError, match=r"symbolic links|replaced"):
        open_beneath.open_file(fd, "f", seen)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o400


@pytest.mark.usefixtures("_either_way")
def test_permission_is_given_only_to_the_expected_kind_of_file(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tree / "f", 0o200)
    with opened(tree) as fd:
        after_the_first_refusal(monkeypatch)
        with pytest.raises(open_beneath.FileReplaced):
            open_beneath.open_file(fd, "f", (tree / "f").lstat())
        after_the_first_refusal(monkeypatch)
        with pytest.raises(open_beneath.FileReplaced):
            open_beneath.open_directory(fd, "f")
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o200


def test_permission_is_given_through_the_checked_descriptor(tree: Path, tmp_path: Path) -> None:
    """Whatever lies under the name by then."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o400)
    (tree / "f").write_text("x")

    def looked_at(mode: int) -> bool:
        (tree / "f").rename(tree / "moved")
        (tree / "f").symlink_to(secret)
        return stat.S_ISREG(mode)

    with opened(tree) as fd:
        open_beneath._grant_owner_access(fd, "f", looked_at, 0o600)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o400
    assert stat.S_IMODE((tree / "moved").stat().st_mode) == 0o600


@pytest.mark.parametrize("who", ["root", "user"])
def test_a_directory_without_permissions_is_collected(who: Who) -> None:
    if not can(who):
        pytest.skip("not root: what a root agent can read is not proved")

    def work(home: Path) -> tuple[list[str], bytes]:
        (home / "job").mkdir()
        (home / "job" / "f").write_text("x")
        with opened(home / "job") as fd:
            (home / "job").chmod(0)  # as run.sh may, once the agent has its descriptor
            found = Walk(fd, Bounds()).count(100)
            assert found.entries == 1
        (home / "job").chmod(0o700)
        made = pack(home / "job")
        return names(made), read(made, "f")

    assert in_child(work, who) == (["f", "ferryman.json"], b"x")


def test_the_size_of_a_links_target_does_not_count(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(bytes(1000))
    (tree / "link").symlink_to(tmp_path / "huge")
    with opened(tree) as fd:
        assert Walk(fd, Bounds()).count(100).bytes == 0


def test_attributes_of_files_are_not_in_the_result(tree: Path) -> None:
    (tree / "f").write_text("x")
    try:
        os.setxattr(tree / "f", "user.secret", b"hidden in an attribute")
    except OSError as problem:
        pytest.skip(f"{problem}: that attributes stay out is not proved")
    data = pack(tree).path.read_bytes()
    assert b"secret" not in data
    assert b"hidden in" not in data
