"""Folders for /dev: each sandbox has one of its own, as new."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_where_none_can_be_made_bwrap_makes_its_own(
    made: DeviceFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(folder: Path, host: int) -> None:
        tried.append((folder, host))
        raise PermissionError(1, "no nodes")

    monkeypatch.setattr(devices, "make_nodes", refuse)
    assert made.take() is None
    assert made.take() is None
    assert len(tried) == 1


def test_an_agent_without_mounts_has_none(tmp_path: Path) -> None:
    assert DeviceFolders(WorkFolders(tmp_path, separate_uids=False)).take() is None
