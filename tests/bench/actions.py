"""One action on a thousand jobs, and what another change waits meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import AsyncExitStack
from pathlib import Path

from server.app import compose
from server.settings.agents import AgentTable
from server.settings.tables import ServerSettings, ServerTable
from server.stages.bulk import BulkAction
from shared.principals import LOCAL
from tests.bench.bulk import fill
from tests.bench.table import Row, median, percentile

ACTIONS = (BulkAction.TAG, BulkAction.UNTAG, BulkAction.CANCEL, BulkAction.DELETE)


async def actions(folder: Path, jobs: int) -> list[Row]:
    """Each action on 1,000 of so many jobs that have ended; the others wait, and are cancelled."""
    path = folder / "ferryman.sqlite"
    await fill(path, jobs, "Completed")
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE jobs SET state = 'Queued', ended_at = NULL WHERE id <= 1000")
        raw.execute("UPDATE jobs SET expires_at = NULL")
    rows = []
    async with AsyncExitStack() as stack:
        nowhere = AgentTable(url="http://127.0.0.1:1")
        settings = ServerSettings(server=ServerTable(data_dir=folder), agents={"local": nowhere})
        server = await compose(settings, stack)
        work, store = server.context.bulk, server.context.jobs
        for action in ACTIONS:
            ids = list(range(1, 1_001) if action is BulkAction.CANCEL else range(2_001, 3_001))
            stop, waits = asyncio.Event(), list[float]()

            async def write(stop: asyncio.Event = stop, waits: list[float] = waits) -> None:
                while not stop.is_set():
                    begin = time.perf_counter()
                    await store.forget_idempotency_keys(1)
                    waits.append(time.perf_counter() - begin)
                    await asyncio.sleep(0.002)

            writer = asyncio.create_task(write())
            begin = time.perf_counter()
            done = await work(LOCAL, action, ids, ("a",) if "tag" in action else ())
            took = time.perf_counter() - begin
            stop.set()
            await writer
            assert all(one.ok for one in done), next(one for one in done if not one.ok)
            rows.append(
                Row(
                    f"{action} 1,000 of {jobs:,} jobs",
                    f"{took:.2f} s",
                    f"another change waits {median(waits) * 1e3:.0f} ms, p99 "
                    f"{percentile(waits, 0.99) * 1e3:.0f} ms",
                    None,
                    "≤ 100 ms",
                    percentile(waits, 0.99) <= 0.1,
                )
            )
    return rows
