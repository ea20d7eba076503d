"""Fixtures of tests that run many histories of the real parts in this process."""

import gc
from collections.abc import Iterator

import pytest

from tests.kit.memory_folder import tmp_path

__all__ = ["tmp_path"]


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Tasks of servers that died log their ends when they are collected. In Python 3.11 that breaks
    a syntax tree which is being made, so it does not wait for another module's tests.
    """
    yield
    gc.collect()
