from tests.kit.memory_folder import tmp_path
from tests.kit.store import clock, database, jobs

__all__ = ["clock", "database", "jobs", "tmp_path"]
