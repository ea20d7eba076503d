"""The prepared root, and folders for /dev: what they have, and when they are made again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from structlog.testing import capture_logs

from client_agent.sandbox.bubblewrap import root_tree
from client_agent.sandbox.bubblewrap.root_tree import CHECK_S, RootTree, RootTrees
from client_agent.sandbox.kernel import devices
from client_agent.sandbox.kernel.devices import DeviceFolders
from client_agent.sandbox.kernel.work_folders import WorkFolders
from shared.clock import RealClock
from tests.kit.each import each


class Host(RealClock):
    """Some files of a host, and an agent without mounts of its own; time passes only when a test
    says so."""

    passed = 0.0

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.etc, self.home = folder / "sources", folder / "home"
        self.etc.mkdir()
        (self.etc / "file").write_text("one\n")
        (self.etc / "certs").mkdir()
        (self.etc / "certs/a.pem").write_text("a\n")
        (self.etc / "certs/link").symlink_to("/usr/share/a.pem")
        sources = [str(self.etc / name) for name in ("file", "certs", "missing")]
        self.trees = RootTrees(WorkFolders(self.home, separate_uids=False), self, sources)

    def monotonic(self) -> float:
        return self.passed

    def tree(self, *, later: bool = False) -> RootTree:
        self.passed += CHECK_S * later
        return self.trees.current(network=False) or self.trees.make(network=False)

    def shown(self, name: str, tree: RootTree | None = None) -> Path:
        return (tree or self.tree()).path / str(self.etc / name)[1:]

    @property
    def made(self) -> list[str]:
        return sorted(path.name for path in (self.home / "roots").iterdir())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    umask = os.umask(0o077)
    try:
        yield Host(tmp_path)
    finally:
        os.umask(umask)


def test_it_has_copies_the_generated_files_and_the_mount_points(host: Host) -> None:
    """What is closed to jobs stays closed in the copy."""
    modes = {"file": 0o640, "certs": 0o700, "certs/a.pem": 0o604}
    for name, mode in modes.items():
        (host.etc / name).chmod(mode)
    tree = host.tree()
    assert {name: host.shown(name).stat().st_mode & 0o777 for name in modes} == modes
    assert host.shown("file").read_text() == "one\n"
    assert host.shown("certs/link").readlink() == Path("/usr/share/a.pem")
    assert not host.shown("missing").exists()
    assert (tree.path / "etc/passwd").read_text() == root_tree.PASSWD
    assert (tree.path / "var/tmp").readlink() == Path("../tmp")
    folders = [tree.path / name for name in (*root_tree.MOUNT_POINTS, "usr", "etc")]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o755}
    assert "/usr" in tree.folders
    assert not tree.mounted


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda etc: (etc / "file").write_text("two\n"),
    "mode": lambda etc: (etc / "file").chmod(0o640),
    "new": lambda etc: (etc / "certs/b.pem").touch(),
    "below": lambda etc: (etc / "certs/a.pem").write_text("other\n"),
    "removed": lambda etc: (etc / "file").unlink(),
    "appears": lambda etc: (etc / "missing").touch(),
}


def test_a_tree_is_made_again_when_a_source_changed(host: Host) -> None:
    for number, (what, change) in enumerate(CHANGES.items(), 1):
        tree = host.tree()
        assert host.tree(later=True) is tree, what
        change(host.etc)
        assert host.tree() is tree, "it is not looked at each time"
        assert host.tree(later=True) is not tree, what
        assert host.made == [f"root.{number + 1}"]
    assert host.shown("certs/b.pem").exists()


def test_a_tree_that_a_job_sees_stays_until_that_job_has_ended(host: Host) -> None:
    first = host.tree()
    first.users += 1
    for text in ("two\n", "three\n"):
        (host.etc / "file").write_text(text)
        host.tree(later=True)
    assert host.made == ["root.1", "root.3"]
    assert host.shown("file", first).read_text() == "one\n"
    first.users -= 1
    (host.etc / "file").write_text("the fourth\n")
    host.tree(later=True)
    assert host.made == ["root.4"]


def test_only_who_uses_the_network_gets_the_resolvers_and_at_the_end_all_goes(host: Host) -> None:
    if not Path(root_tree.COPIED_WITH_NETWORK).exists():
        pytest.skip("this host has no resolv.conf: that it is copied is not proved")
    host.tree().users += 1
    tree = host.trees.make(network=True)
    assert (tree.path / "etc/resolv.conf").exists()
    assert not (host.tree().path / "etc/resolv.conf").exists()
    host.trees.close()
    assert host.made == []


def test_a_folder_that_cannot_be_copied_leaves_no_tree(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        host.tree()
    assert host.made == []


# ---------------------------------------------------------------- /dev


class Folders(WorkFolders):
    """Of an agent with mounts, which are plain folders here."""

    has_mounts = True


@pytest.fixture
def make_nodes(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """What makes device nodes, which may fail."""

    def mount(source: str, target: Path, kind: str, *_: object) -> None:
        if kind == "devpts":
            (target / "ptmx").touch()

    made = mock.Mock(side_effect=lambda folder, _: (folder / "null").touch())
    monkeypatch.setattr("client_agent.sandbox.kernel.mounts.mount", mount)
    monkeypatch.setattr(devices, "make_nodes", made)
    return made


def test_each_has_a_dev_of_its_own_and_leaves_it_to_the_next_as_new(
    make_nodes: mock.Mock, tmp_path: Path
) -> None:
    made = DeviceFolders(Folders(tmp_path, separate_uids=False))
    first, second = made.take(), made.take()
    assert first is not None
    assert second not in (None, first)
    made.give_back(first)
    assert made.take() == first
    (first / "pts/0").touch()  # a terminal
    made.give_back(first)
    assert made.take() not in (None, first, second)
    without_mounts = WorkFolders(tmp_path, separate_uids=False)
    assert DeviceFolders(without_mounts).take() is None


IMPOSSIBLE = ("EPERM", "EACCES", "EINVAL", "ENODEV", "ENOSYS", "EOPNOTSUPP")


@each("name", [*IMPOSSIBLE, "EMFILE", "ENOMEM", "ENOSPC"])
def test_where_none_can_be_made_bwrap_makes_its_own(
    make_nodes: mock.Mock, tmp_path: Path, name: str
) -> None:
    """One that cannot be made now only is made at the next start."""
    made = DeviceFolders(Folders(tmp_path / name, separate_uids=False))
    works, never = make_nodes.side_effect, name in IMPOSSIBLE
    make_nodes.reset_mock()
    make_nodes.side_effect = OSError(getattr(errno, name), name)
    with capture_logs() as logs:
        assert [made.take(), made.take()] == [None, None]
    make_nodes.side_effect = works
    assert make_nodes.call_count == (1 if never else 2)
    assert [line["event"] for line in logs] == ["sandbox.no_devices"] * never
    assert list((tmp_path / name).rglob("dev.*")) == []
    assert (made.take() is None) == never
