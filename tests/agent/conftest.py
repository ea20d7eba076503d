from tests.agent.agent_packing import tree
from tests.kit.memory_folder import module_folder, tmp_path
from tests.kit.warm_agent import agent, warm_agent

__all__ = ["agent", "module_folder", "tmp_path", "tree", "warm_agent"]
