"""An array of trivial children, from the upload to the last result."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
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
    are uploaded one by one, and beside ``bash run.sh``, in a plain bwrap and without any, as many
    at once as the agent has slots."""
    slots = os.cpu_count() or 1
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
    plain = await _plain(folder, slots, singles)
    wrapped = await _plain(folder, slots, singles, bwrap(folder))
    async with bare.sandbox(folder / "bare") as found:
        spawns = await bare.spawns(found, folder, slots, max(40, count // 20))
    theirs = (
        (f"jobs one by one ({before:.0f}, {after:.0f})", (before + after) / 2, True),
        (f"bare sandbox × {slots}", spawns, False),
        (f"plain bwrap × {slots}", wrapped, False),
        (f"plain bash run.sh × {slots}", plain, False),
    )
    return [
        Row(f"packed array of {count}", f"{packed:.0f}/s", "", None, "≥ 500/s", packed >= 500),
        *(
            Row(
                f"{kind}array of {count} children, upload → last result",
                f"{ours:.0f} children/s",
                f"{what} {rate:.0f}/s",
                ours / rate,
                "> 1" if bounded else "",
                ours > rate if bounded else None,
            )
            for kind, ours in (("", children), ("packed ", packed))
            for what, rate, bounded in theirs
        ),
    ]


def bwrap(folder: Path) -> list[str]:
    """A minimal sandbox for ``bash run.sh``."""
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"),
        *("--proc", "/proc", "--dev", "/dev", "--ro-bind", str(folder), "/tmp", "--chdir", "/tmp"),
    ]


async def _array(session: aiohttp.ClientSession, count: int) -> float:
    """Children a second."""
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


async def _plain(folder: Path, slots: int, count: int, within: Sequence[str] = ()) -> float:
    """``bash run.sh`` a second, within a command."""
    (folder / "run.sh").write_bytes(bare.HELLO)

    async def run(*_: int) -> None:
        process = await asyncio.create_subprocess_exec(
            *within, "bash", "run.sh", cwd=folder, stdout=asyncio.subprocess.DEVNULL
        )
        await process.wait()

    return await bare.rate(run, slots, count)
