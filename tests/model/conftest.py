"""Fixtures of tests that run many histories of the real parts in this process."""

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kit.memory_folder import tmp_path
from tests.model.simulation import World, simulated

__all__ = ["tmp_path"]


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """It has the services of the test's module, and has started."""
    with simulated(tmp_path, request.module.SERVICES) as found:
        await found.start()
        yield found


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Tasks of servers that died log their ends when they are collected. In Python 3.11 that breaks
    a syntax tree which is being made, so it does not wait for another module's tests.
    """
    yield
    gc.collect()
