"""Folders for /dev: each sandbox has one of its own, as new."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from client_agent.sandbox.kernel import devices
from client_agent.sandbox.kernel.devices import DeviceFolders
from client_agent.sandbox.kernel.work_folders import WorkFolders


class Folders(WorkFolders):
    """Of an agent with mounts, which are plain folders here."""

    has_mounts = True


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceFolders:
    def mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
        del source, flags, options
        if kind == "devpts":
            (target / "ptmx").touch()

    monkeypatch.setattr("client_agent.sandbox.kernel.mounts.mount", mount)
    monkeypatch.setattr(devices, "make_nodes", lambda folder, host: (folder / "null").touch())
    return DeviceFolders(Folders(tmp_path, separate_uids=False))


def test_each_has_one_of_its_own_and_leaves_it_to_the_next(made: DeviceFolders) -> None:
    first, second = made.take(), made.take()
    assert first is not None
    assert second is not None
    assert first != second
    made.give_back(first)
    assert made.take() == first
    assert made.take() not in (first, second)


def test_one_with_a_terminal_is_not_given_to_another(made: DeviceFolders) -> None:
    first = made.take()
    assert first is not None
    (first / "pts/0").touch()
    made.give_back(first)
    assert made.take() not in (None, first)


def failing(monkeypatch: pytest.MonkeyPatch, code: int) -> list[Path]:
    """Nodes cannot be made from now on; where that was tried."""
    tried = []

    def refuse(folder: Path, host: int) -> None:
        del host
        tried.append(folder)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(devices, "make_nodes", refuse)
    return tried


@pytest.mark.parametrize("name", ["EPERM", "EACCES", "EINVAL", "ENODEV", "ENOSYS", "EOPNOTSUPP"])
def test_where_none_can_be_made_bwrap_makes_its_own(
    made: DeviceFolders, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tried = failing(monkeypatch, getattr(errno, name))
    with capture_logs() as logs:
        assert made.take() is None
        assert made.take() is None
    assert len(tried) == 1
    assert [line["event"] for line in logs] == ["sandbox.no_devices"]


@pytest.mark.parametrize("name", ["EMFILE", "ENOMEM", "ENOSPC"])
def test_one_that_cannot_be_made_now_is_made_at_the_next_start(
    made: DeviceFolders, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as until_it_passes, capture_logs() as logs:
        tried = failing(until_it_passes, getattr(errno, name))
        assert made.take() is None
        assert made.take() is None
    assert len(tried) == 2
    assert not any(folder.exists() for folder in tried)
    assert logs == []
    assert made.take() is not None


def test_an_agent_without_mounts_has_none(tmp_path: Path) -> None:
    assert DeviceFolders(WorkFolders(tmp_path, separate_uids=False)).take() is None
