"""Fixtures of tests that put the real parts together in this process."""

from tests.kit.memory_folder import module_folder, tmp_path

__all__ = ["module_folder", "tmp_path"]
