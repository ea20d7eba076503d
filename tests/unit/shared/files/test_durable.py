from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shared.files import durable


@pytest.fixture
def calls(monkeypatch):
    """What reached the disk, in order."""
    seen: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(fd: int) -> None:
        seen.append("fsync " + Path(f"/proc/self/fd/{fd}").readlink().name)
        real_fsync(fd)

    def replace(self: Path, target: Path) -> Path:
        seen.append(f"rename {self.name} {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    return seen


def test_the_content_is_synced_before_the_name_and_then_the_folder(tmp_path, calls):
    (tmp_path / "tmp").write_text("x")
    (tmp_path / "kept").mkdir()
    durable.replace(tmp_path / "tmp", tmp_path / "kept" / "final")
    assert calls == ["fsync tmp", "rename tmp final", "fsync kept"]
    assert (tmp_path / "kept" / "final").read_text() == "x"
    assert not (tmp_path / "tmp").exists()


def test_content_that_is_synced_already_is_not_synced_again(tmp_path, calls):
    (tmp_path / "tmp").write_text("x")
    durable.replace(tmp_path / "tmp", tmp_path / "final", synced=True)
    assert calls == ["rename tmp final", f"fsync {tmp_path.name}"]


def test_a_name_that_is_not_durable_is_taken_back(tmp_path, monkeypatch):
    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "broken disk")

    (tmp_path / "tmp").write_text("x")
    monkeypatch.setattr(durable, "fsync_folder", broken)
    with pytest.raises(OSError, match="broken disk"):
        durable.replace(tmp_path / "tmp", tmp_path / "final")
    assert list(tmp_path.iterdir()) == []


def test_removing_quietly_takes_files_and_says_nothing_else(tmp_path):
    (tmp_path / "x").write_text("x")
    durable.remove_quietly(tmp_path / "x")
    durable.remove_quietly(tmp_path / "x")
    durable.remove_quietly(tmp_path)
    assert tmp_path.is_dir()
    assert list(tmp_path.iterdir()) == []
