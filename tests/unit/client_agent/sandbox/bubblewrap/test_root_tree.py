"""The prepared root: what it has, and when it is made again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_agent.sandbox.bubblewrap import root_tree
from client_agent.sandbox.bubblewrap.root_tree import CHECK_S, RootTree, RootTrees
from client_agent.sandbox.kernel.work_folders import WorkFolders
from shared.clock import RealClock


class Waiting(RealClock):
    """Time passes only when a test says so."""

    passed = 0.0

    def monotonic(self) -> float:
        return self.passed


class Host:
    """Some files of a host, and an agent without mounts of its own."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.home, self.clock = folder / "sources", folder / "home", Waiting()
        self.etc.mkdir()
        (self.etc / "file").write_text("one\n")
        (self.etc / "certs").mkdir()
        (self.etc / "certs/a.pem").write_text("a\n")
        (self.etc / "certs/link").symlink_to("/usr/share/a.pem")
        self.sources = [str(self.etc / name) for name in ("file", "certs", "missing")]
        folders = WorkFolders(self.home, separate_uids=False)
        self.trees = RootTrees(folders, self.clock, self.sources)

    def tree(self) -> RootTree:
        return self.trees.current(network=False) or self.trees.make(network=False)

    def shown(self, name: str, tree: RootTree | None = None) -> Path:
        return (tree or self.tree()).path / str(self.etc / name)[1:]

    def later(self) -> None:
        self.clock.passed += CHECK_S

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
    (host.etc / "file").chmod(0o644)
    tree = host.tree()
    assert host.shown("file").read_text() == "one\n"
    assert host.shown("certs/link").readlink() == Path("/usr/share/a.pem")
    assert not host.shown("missing").exists()
    assert (tree.path / "etc/passwd").read_text() == root_tree.PASSWD
    assert (tree.path / "var/tmp").readlink() == Path("../tmp")
    for name in (*root_tree.MOUNT_POINTS, "usr", "etc"):
        status = (tree.path / name).stat()
        assert status.st_mode & 0o777 == 0o755, name
    assert "/usr" in tree.folders
    assert not tree.mounted


def test_what_is_closed_to_jobs_stays_closed_in_the_copy(host: Host) -> None:
    (host.etc / "file").chmod(0o640)
    (host.etc / "certs").chmod(0o700)
    (host.etc / "certs/a.pem").chmod(0o604)
    modes = [host.shown(name).stat().st_mode & 0o777 for name in ("file", "certs", "certs/a.pem")]
    assert modes == [0o640, 0o700, 0o604]


def test_a_tree_is_kept_while_its_sources_are_the_same(host: Host) -> None:
    first = host.tree()
    host.later()
    assert host.tree() is first
    assert host.made == ["root.1"]


@pytest.mark.parametrize("change", ["content", "new file", "removed", "mode", "below", "appears"])
def test_a_tree_is_made_again_when_a_source_changed(host: Host, change: str) -> None:
    first = host.tree()
    match change:
        case "content":
            (host.etc / "file").write_text("two\n")
        case "new file":
            (host.etc / "certs/b.pem").touch()
        case "removed":
            (host.etc / "file").unlink()
        case "mode":
            (host.etc / "file").chmod(0o640)
        case "below":
            (host.etc / "certs/a.pem").write_text("other\n")
        case "appears":
            (host.etc / "missing").touch()
    assert host.tree() is first, "it is not looked at each time"
    host.later()
    assert host.tree() is not first
    assert host.made == ["root.2"]
    assert host.shown("certs/b.pem").exists() == (change == "new file")


def test_a_tree_that_a_job_sees_stays_until_that_job_has_ended(host: Host) -> None:
    first = host.tree()
    first.users += 1
    for text in ("two\n", "three\n"):
        (host.etc / "file").write_text(text)
        host.later()
        host.tree()
    assert host.made == ["root.1", "root.3"]
    assert host.shown("file", first).read_text() == "one\n"
    first.users -= 1
    (host.etc / "file").write_text("the fourth\n")
    host.later()
    host.tree()
    assert host.made == ["root.4"]


def test_a_folder_that_cannot_be_copied_leaves_no_tree(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        host.tree()
    assert host.made == []


def test_only_who_uses_the_network_gets_the_resolvers(host: Host) -> None:
    if not Path(root_tree.COPIED_WITH_NETWORK).exists():
        pytest.skip("this host has no resolv.conf: that it is copied is not proved")
    host.tree()
    tree = host.trees.make(network=True)
    assert (tree.path / "etc/resolv.conf").exists()
    assert not (host.tree().path / "etc/resolv.conf").exists()


def test_at_the_end_all_are_removed(host: Host) -> None:
    host.tree().users += 1
    host.trees.make(network=True)
    host.trees.close()
    assert host.made == []
