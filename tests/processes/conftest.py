"""Fixtures of tests that start processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_agent.storage.remove_tree import remove_tree
from tests.kit.memory_folder import new_folder
from tests.kit.real_sandbox import Who, can


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every uid of this machine can enter, which pytest's own are not."""
    folder = new_folder()
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


@pytest.fixture(params=["root", "user"])
def who(request: pytest.FixtureRequest) -> Who:
    """As whom the agent is started; a test that asks for it runs as both."""
    if not can(request.param):
        pytest.skip("not root: what holds for an agent that root starts is not proved")
    return request.param  # type: ignore[no-any-return]
