"""Packs a folder as the agent packs a job's directory, and looks into the result."""

import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from client_agent.collect.contents import Contents
from client_agent.collect.pack import collect
from client_agent.collect.selection import Selection
from client_agent.collect.walk import Bounds
from shared.wire import Limits

MIB = 1 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A job's directory."""
    made = tmp_path / "job"
    made.mkdir()
    return made


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def pack(
    tree: Path,
    extras: Mapping[str, Path | bytes] | None = None,
    results: int = 64 * MIB,
    bounds: Bounds | None = None,
    name: str = "result.zip",
    selection: Selection | None = None,
) -> Contents:
    with opened(tree) as fd:
        return collect(
            fd,
            tree.parent / name,
            Limits(results=results),
            extras or {},
            lambda contents: repr(contents.names).encode(),
            bounds,
            selection=selection,
        )


def names(made: Contents) -> list[str]:
    with zipfile.ZipFile(made.path) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def read(made: Contents, name: str) -> bytes:
    with zipfile.ZipFile(made.path) as archive:
        return archive.read(name)


def skipped(made: Contents) -> dict[str, str]:
    return {one.path: one.why for one in made.skipped}
