from tests.kit.memory_folder import module_folder, tmp_path
from tests.kit.warm import place, warm

__all__ = ["module_folder", "place", "tmp_path", "warm"]
