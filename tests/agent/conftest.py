from tests.agent.agent_packing import tree
from tests.kit.agent_http import agent, warm_agent
from tests.kit.memory_folder import module_folder, tmp_path

__all__ = ["agent", "module_folder", "tmp_path", "tree", "warm_agent"]
