"""Fixtures of tests that start processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_agent.storage.remove_tree import remove_tree
from tests.kit.memory_folder import new_folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that jobs may enter and write to, whoever they run as; pytest's own are not."""
    folder = new_folder()
    folder.chmod(0o777)
    yield folder
    remove_tree(folder)
