from tests.kit.memory_folder import module_folder, tmp_path
from tests.kit.warm import place, warm
from tests.server.front import guarded, name, program

__all__ = ["guarded", "module_folder", "name", "place", "program", "tmp_path", "warm"]
