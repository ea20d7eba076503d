"""Fixtures of tests of the store."""

from types import ModuleType
from typing import Any

import pytest

import server.store.agents
import server.store.services
import server.store.statistics
import server.store.tokens
from tests.kit.memory_folder import tmp_path
from tests.kit.store import Calls, clock, database, jobs

__all__ = ["clock", "database", "jobs", "tmp_path"]


def calls(module: ModuleType) -> Any:
    """A fixture: the functions of a module of the store, each in a transaction of its own."""
    return pytest.fixture(lambda database: Calls(database, module))


agents, services = calls(server.store.agents), calls(server.store.services)
statistics, tokens = calls(server.store.statistics), calls(server.store.tokens)
