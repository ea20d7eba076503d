"""Fixtures of tests of a server and its agents."""

from tests.fleet.warm_fleet import fleet, module_folder, shared_server
from tests.kit.memory_folder import tmp_path

__all__ = ["fleet", "module_folder", "shared_server", "tmp_path"]
