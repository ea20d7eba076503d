"""Fixtures of tests that put the real parts together in this process."""

from tests.support.memory_folder import tmp_path

__all__ = ["tmp_path"]
