"""What it costs that Prometheus asks."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import patch

from structlog.testing import capture_logs

from server import metrics as server_metrics
from tests.bench.bulk import fill
from tests.bench.table import Row, median
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving


async def metrics(folder: Path, few: int, many: int, times: int) -> list[Row]:
    """A scrape beside few and many waiting jobs, read again each time."""
    took, cpu, size = dict[int, float](), dict[int, float](), 0
    for count in (few, many):
        at = folder / f"metrics{count}"
        await fill(at / "data" / "ferryman.sqlite", count, "Queued")
        with capture_logs():
            async with driving(at, FakeOrchestrator(), gone=True, auth="none") as client:
                with patch.multiple(server_metrics, _FRESH_S=0.0, _REST=0):
                    found = []
                    await client.get("/metrics")
                    before = time.process_time()
                    for _ in range(times):
                        began = time.perf_counter()
                        size = len((await client.get("/metrics"))[2])
                        found.append(time.perf_counter() - began)
                    cpu[count] = (time.process_time() - before) / times
                    took[count] = median(found)
    return [
        Row(
            f"a scrape beside {many:,} waiting jobs, {size / 1e3:.0f} kB, client included",
            f"{took[many] * 1e3:.1f} ms",
            f"{few:,}: {took[few] * 1e3:.1f} ms",
            took[many] / took[few],
            "≤ 150 ms: 1 % of a core at one each 15 s",
            took[many] <= 0.15,
        ),
        Row(
            "CPU of it",
            f"{cpu[many] * 1e3:.1f} ms",
            f"{few:,}: {cpu[few] * 1e3:.1f} ms",
            cpu[many] / cpu[few],
            "≤ 150 ms",
            cpu[many] <= 0.15,
        ),
    ]
