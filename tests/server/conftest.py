from collections.abc import AsyncIterator

import pytest_asyncio

from tests.kit.fake_agent import served
from tests.kit.memory_folder import module_folder, tmp_path
from tests.kit.pages import Browser, browsing
from tests.kit.warm import Place, place, warm
from tests.server.front import guarded, name, program

__all__ = ["guarded", "module_folder", "name", "place", "program", "served", "tmp_path", "warm"]


@pytest_asyncio.fixture(loop_scope="module")
async def admin(place: Place) -> AsyncIterator[Browser]:
    async with browsing(place.url, place.warm.operator) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def browser(place: Place) -> AsyncIterator[Browser]:
    async with browsing(place.url) as found:
        yield found
