"""The database that every contract of the store is held against."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from tests.support.simclock import SimClock


@pytest.fixture
def clock() -> SimClock:
    """The database's."""
    return SimClock()


@pytest.fixture
async def database(tmp_path: Path, clock: SimClock) -> AsyncIterator[Database]:
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS, clock)
    yield database
    await database.close()
