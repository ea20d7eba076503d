"""An array of trivial children, from the upload to the last result."""

import time
from pathlib import Path
from typing import Final

import aiohttp

from tests.bench import bare, jobs
from tests.bench.table import Row
from tests.kit.programs import form

PACK: Final = 50
_RUNS: Final = "runs_per_user = 64\nmax_runs = 64\n"
PACKED: Final = jobs.CONFIG.replace(_RUNS, f"runs_per_user = 500\nmax_runs = 500\npack = {PACK}\n")
"""A service whose children share a sandbox start."""


async def array(folder: Path, count: int) -> list[Row]:
    """Children of one upload a second, each with a sandbox of its own and packed, beside jobs that
    are uploaded one by one."""
    singles = max(50, count // 10)
    async with jobs.running(folder / "run") as (server, _):
        async with aiohttp.ClientSession(server.url) as session:
            await jobs.many(session, 10)
            before = singles / await jobs.many(session, singles)
            children = await _array(session, count)
            after = singles / await jobs.many(session, singles)
    async with jobs.running(folder / "packed", config=PACKED) as (server, _):
        async with aiohttp.ClientSession(server.url) as session:
            await jobs.many(session, 10)
            packed = await _array(session, count)
    alone = (before + after) / 2
    said, met = f"jobs one by one {alone:.0f}/s ({before:.0f}, {after:.0f})", packed >= 500
    what = f"array of {count} children, upload → last result"
    return [
        Row(f"packed array of {count}", f"{packed:.0f}/s", "", None, "≥ 500/s", met),
        *(
            Row(f"{kind}{what}", f"{ours:.0f}/s", said, ours / alone, "> 1", ours > alone)
            for kind, ours in (("", children), ("packed ", packed))
        ),
    ]


async def _array(session: aiohttp.ClientSession, count: int) -> float:
    body = form({"run.sh": bare.HELLO}, array=f"0-{count - 1}")
    start = time.perf_counter()
    job_id = await jobs.upload(session, body)
    while True:
        async with session.get(f"/download/{job_id}", params={"wait": "60"}) as answer:
            await answer.read()
        async with session.get(f"/api/v1/jobs/{job_id}") as answer:
            job = await answer.json()
        if job["ended"]:
            assert job["status"] == "Completed", job
            return count / (time.perf_counter() - start)
