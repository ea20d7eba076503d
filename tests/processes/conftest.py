"""Fixtures of tests that start processes."""

from tests.process.conftest import open_folder, who

__all__ = ["open_folder", "who"]
