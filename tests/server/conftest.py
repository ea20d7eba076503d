from tests.kit.fake_agent import served
from tests.kit.memory_folder import module_folder, tmp_path
from tests.kit.warm import place, warm
from tests.server.front import guarded, name, program

__all__ = ["guarded", "module_folder", "name", "place", "program", "served", "tmp_path", "warm"]
