"""A folder in memory for tests of programs in this process, which a power cut does not concern."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")  # a file system in memory, on every Linux
ROOM = 1 << 30
"""Bytes free: containers may have 64 MiB, which a test or two would fill."""


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    folder = new_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """The test's own folder, in place of pytest's. A server waits for the disk at each commit and
    each sealed file: on a disk these waits are most of the time of such a test.
    """
    folder = new_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def new_folder() -> Path:
    """Make a folder in memory; where memory has no room, in the usual place on disk."""
    return Path(tempfile.mkdtemp(prefix="ferryman-test-", dir=memory()))


def memory() -> Path | None:
    """The file system in memory, if it has room and lets programs run."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return None
    fits = found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC
    return MEMORY if fits and os.access(MEMORY, os.W_OK) else None
