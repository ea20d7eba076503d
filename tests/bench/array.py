"""An array of trivial children, from the upload to the last result."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import aiohttp

from tests.bench import bare, jobs
from tests.bench.table import Row


async def array(folder: Path, count: int) -> list[Row]:
    """Children of one upload a second, beside jobs that are uploaded one by one, and beside plain
    ``bash run.sh`` without a sandbox, as many at once as the agent has slots."""
    slots = os.cpu_count() or 1
    singles = max(50, count // 10)
    async with jobs.running(folder / "run") as (server, _):
        async with aiohttp.ClientSession(server.url) as session:
            await jobs.many(session, 10)
            before = singles / await jobs.many(session, singles)
            children = await _array(session, count)
            after = singles / await jobs.many(session, singles)
    plain = await _plain(folder, slots, singles)
    async with bare.sandbox(folder / "bare") as found:
        spawns = await bare.rate(found, folder, slots, max(40, count // 20))
    alone = (before + after) / 2
    ours = f"{children:.0f} children/s"
    return [
        Row(f"array of {count} children", ours, "", None, "≥ 500/s", children >= 500),
        *(
            Row(
                f"array of {count} children, upload → last result",
                ours,
                f"{what} {rate:.0f}/s",
                children / rate,
                target,
                met(children / rate) if met else None,
            )
            for what, rate, target, met in (
                (f"jobs one by one ({before:.0f}, {after:.0f})", alone, "> 1", lambda r: r > 1),
                (f"bare sandbox × {slots}", spawns, "", None),
                (f"plain bash run.sh × {slots}", plain, "", None),
            )
        ),
    ]


async def _array(session: aiohttp.ClientSession, count: int) -> float:
    """Children a second."""
    field = f'--b\r\nContent-Disposition: form-data; name="array"\r\n\r\n0-{count - 1}\r\n'
    start = time.perf_counter()
    async with session.post(
        "/upload", data=field.encode() + jobs.BODY, headers=jobs.HEADERS
    ) as answer:
        assert answer.status == 201, await answer.text()
        job_id = (await answer.json())["id"]
    while True:
        async with session.get(f"/download/{job_id}", params={"wait": "60"}) as answer:
            await answer.read()
        async with session.get(f"/api/v1/jobs/{job_id}") as answer:
            job = await answer.json()
        if job["ended"]:
            assert job["status"] == "Completed", job
            return count / (time.perf_counter() - start)


async def _plain(folder: Path, slots: int, count: int) -> float:
    """``bash run.sh`` a second."""
    (folder / "run.sh").write_bytes(bare.HELLO)
    numbers, start = iter(range(count)), time.perf_counter()

    async def worker() -> None:
        for _ in numbers:
            process = await asyncio.create_subprocess_exec(
                "bash", "run.sh", cwd=folder, stdout=asyncio.subprocess.DEVNULL
            )
            await process.wait()

    await asyncio.gather(*(worker() for _ in range(slots)))
    return count / (time.perf_counter() - start)
