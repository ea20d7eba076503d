"""Fixtures of tests of a server and its agents."""

from tests.kit.memory_folder import tmp_path
from tests.kit.warm_fleet import fleet, module_folder, shared_server

__all__ = ["fleet", "module_folder", "shared_server", "tmp_path"]
