"""Fixtures of tests that run many histories of the real parts in this process."""

from tests.kit.memory_folder import tmp_path

__all__ = ["tmp_path"]
