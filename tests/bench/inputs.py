"""What jobs with large inputs take of the server's disk."""

import os
from pathlib import Path

import aiohttp

from tests.bench import jobs
from tests.bench.table import Row
from tests.kit.programs import Program, form

SCRIPT = b"wc -c data >size\n"


async def disk(folder: Path, count: int, size: int) -> list[Row]:
    """So many jobs, each with inputs of its own that it leaves as they are."""
    with jobs.running(folder) as (server, *agents):
        async with aiohttp.ClientSession(server.url) as session:
            await jobs.one(session)
            start, before = _stored(server), jobs.used(server, agents)
            given = 0
            for _ in range(count):
                body = form({"run.sh": SCRIPT, "data": os.urandom(size)})
                given += await _downloaded(session, await jobs.upload(session, body))
            agent = jobs.costs(before, jobs.used(server, agents), count)["agent"]
            stored = _stored(server) - start
    whole = count * size + given
    return [
        Row(
            f"{count:,} jobs with {size / 1e6:.0f} MB of inputs each: bundles and results on disk"
            " · CPU of the agent a job",
            f"{stored / 1e6:.1f} MB · {agent:.0f} ms",
            f"bundles and downloads {whole / 1e6:.1f} MB",
            stored / whole,
            "≤ 0.55",
            stored / whole <= 0.55,
        )
    ]


async def _downloaded(session: aiohttp.ClientSession, job_id: int) -> int:
    """Bytes of the result, with its inputs."""
    async with session.get(f"/download/{job_id}", params={"wait": "120"}) as answer:
        assert answer.content_type == "application/zip", await answer.text()
        return len(await answer.read())


def _stored(server: Program) -> int:
    files = (one for one in server.data.rglob("*") if one.is_file())
    return sum(one.stat().st_blocks * 512 for one in files)
