"""Latency and throughput of small jobs through server and agent."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.bench import bare
from tests.bench.table import Row, median, percentile
from tests.support.programs import Program

CONFIG = """
[services.example]
runs_per_user = 64
max_runs = 64
limits = { disk = "20GiB", results = "20GiB" }
[server]
max_upload = "30GiB"
log_level = "warning"
[agent]
log_level = "warning"
"""
BODY = (
    b'--b\r\nContent-Disposition: form-data; name="user_id"\r\n\r\n1\r\n'
    b'--b\r\nContent-Disposition: form-data; name="service"\r\n\r\nexample\r\n'
    b'--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n'
    + bare.HELLO
    + b"\r\n--b--\r\n"
)
HEADERS = {"Content-Type": "multipart/form-data; boundary=b"}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Program, Program]]:
    """A real server and a real agent."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "ferryman.toml"
    config.write_text(CONFIG)
    mark = uuid.uuid4().hex
    agent = Program("client_agent", folder, mark, "--config", str(config))
    flags = ("--config", str(config), "--agent-url", agent.url)
    server = Program("server", folder, mark, *flags)
    try:
        await asyncio.to_thread(agent.start)
        await asyncio.to_thread(server.start)
        async with aiohttp.ClientSession(server.url) as session:
            while True:
                async with session.get("/health") as answer:
                    if "up" in (await answer.json())["agents"].values():
                        break
        yield server, agent
    finally:
        for program in (server, agent):
            if program.process is not None and program.process.poll() is None:
                await asyncio.to_thread(program.kill)


async def one(session: aiohttp.ClientSession) -> tuple[float, float]:
    """Upload, wait, download. Seconds from the answer to the end, and in all."""
    start = time.perf_counter()
    async with session.post("/upload", data=BODY, headers=HEADERS) as answer:
        assert answer.status == 201, await answer.text()
        job_id = (await answer.json())["id"]
    answered = time.perf_counter()
    async with session.get(f"/download/{job_id}", params={"wait": "60"}) as answer:
        assert answer.content_type == "application/zip", await answer.text()
        await answer.read()
    end = time.perf_counter()
    return end - answered, end - start


async def latency(folder: Path, count: int) -> list[Row]:
    """One job at a time, a bare spawn beside each."""
    ours, spawns = [], []
    async with running(folder) as (server, _), bare.sandbox(folder / "bare") as found:
        async with aiohttp.ClientSession(server.url) as session:
            for number in range(count + 10):
                took = (await one(session))[0]
                alone = await bare.spawn(found, folder, f"l{number}", 0)
                if number >= 10:  # the first warm up
                    ours.append(took)
                    spawns.append(alone)
    rows = []
    for share, most in ((0.5, 3.0), (0.99, 10.0)):
        mine, theirs = percentile(ours, share), percentile(spawns, share)
        base = median(spawns)
        rows.append(
            Row(
                f"idle latency p{share * 100:.0f}, answered → downloaded",
                f"{mine * 1e3:.1f} ms",
                f"bare spawn p50 {base * 1e3:.1f} ms (its p{share * 100:.0f}: {theirs * 1e3:.1f})",
                mine / base,
                f"≤ {most:.0f}",
                mine / base <= most,
            )
        )
    return rows


async def throughput(folder: Path, count: int) -> list[Row]:
    """Many jobs, against bare spawns at the parallelism of the agent's slots, before and after."""
    slots = os.cpu_count() or 1
    async with bare.sandbox(folder / "bare") as found:
        before = await bare.rate(found, folder, slots, max(40, count // 4))
        async with running(folder / "run") as (server, agent):
            async with aiohttp.ClientSession(server.url) as session:
                numbers = iter(range(count))

                async def client() -> None:
                    for _ in numbers:
                        await one(session)

                await asyncio.gather(*(one(session) for _ in range(10)))
                used = [cpu_s(program) for program in (server, agent)]
                start = time.perf_counter()
                await asyncio.gather(*(client() for _ in range(16)))
                took = time.perf_counter() - start
                used = [
                    cpu_s(program) - was for program, was in zip((server, agent), used, strict=True)
                ]
        after = await bare.rate(found, folder, slots, max(40, count // 4))
    base = median([before, after])
    each = " ".join(
        f"{name} {seconds / count * 1e3:.1f} ms"
        for name, seconds in zip(("server", "agent"), used, strict=True)
    )
    return [
        Row(
            f"small jobs, sustained ({count})",
            f"{count / took:.1f}/s (CPU a job: {each})",
            f"bare spawns, {slots} at once: {base:.1f}/s",
            count / took / base,
            "≥ 0.60",
            count / took / base >= 0.6,
        )
    ]


def cpu_s(program: Program) -> float:
    """CPU seconds of a program itself, without its children."""
    assert program.process is not None
    words = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
