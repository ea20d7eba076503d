"""Latency, rate and CPU of small jobs through server and agent."""

import asyncio
import os
from pathlib import Path

import aiohttp

from client_agent.sandbox.base import SandboxSettings
from tests.bench import bare, jobs
from tests.bench.table import Row, median, percentile


async def latency(folder: Path, count: int) -> list[Row]:
    """One job at a time; beside each a bare chain, which nobody watches, and a bare spawn, which
    is our whole sandbox without server and agent."""
    ours, chains, spawns = list[float](), list[float](), list[float]()
    async with (  # sandboxes first: a mount namespace is a thread's, and those made later have it
        bare.sandbox(folder / "bare") as found,
        bare.sandbox(folder / "plain", SandboxSettings(disk_images=False)) as without_image,
        jobs.running(folder / "run") as (server, _),
    ):
        chain, workspace = await bare.chained(without_image, "chain")
        async with aiohttp.ClientSession(server.url) as session:
            for number in range(-10, count):
                took = (await jobs.one(session))[0]
                plain = await asyncio.to_thread(chain.whole)
                alone = await bare.spawn(found, folder, f"l{number}", 0)
                if number >= 0:  # the first warm up
                    ours.append(took)
                    chains.append(plain)
                    spawns.append(alone)
        await workspace.destroy()
    base = median(chains)
    rows = []
    for share, most in ((0.5, 2.0), (0.9, None), (0.99, 5.0)):
        mine = percentile(ours, share)
        rows.append(
            Row(
                f"idle latency p{share * 100:.0f}, answered → downloaded",
                f"{mine * 1e3:.1f} ms",
                f"the bare chain, p50 {base * 1e3:.1f} ms (bare spawn {median(spawns) * 1e3:.1f})",
                mine / base,
                "" if most is None else f"≤ {most:.0f}",
                None if most is None else mine / base <= most,
            )
        )
    return rows


async def throughput(folder: Path, rounds: int) -> list[Row]:
    """Jobs a second and their CPU, beside bare spawns and beside a plain minimal bwrap at the
    parallelism of the agent's slots; medians of rounds that take turns."""
    slots = os.cpu_count() or 1
    spawns, minimal, found = list[float](), list[float](), list[dict[str, float]]()
    async with bare.sandbox(folder / "bare") as sandbox, jobs.running(folder / "run") as both:
        chain, workspace = await bare.chained(sandbox, "minimal")

        async def plain(*_: int) -> None:
            await asyncio.to_thread(chain.minimal)

        async with aiohttp.ClientSession(both[0].url) as session:
            await jobs.many(session, jobs.WARM_UP)
        for _ in range(rounds):
            spawns.append(await bare.spawns(sandbox, folder, slots, 40))
            minimal.append(await bare.rate(plain, slots, 100))
            found.append(await jobs.round_of(both[0], both[1:]))
        await workspace.destroy()
    now, base, least = jobs.medians(found), median(spawns), median(minimal)
    rate, said = now["rate"], f"{now['rate']:.1f}/s"
    what = f"small jobs, {jobs.AT_ONCE} clients, {rounds} × {jobs.ROUND}"
    slowest = min(one["rate"] for one in found)
    rows = [
        Row(what, said, f"the slowest {slowest:.1f}/s", None, "≥ 105/s", rate >= 105),
        Row("the same", said, f"bare spawns, {slots} at once: {base:.1f}/s", rate / base),
        Row("the same", said, f"plain minimal bwrap, {slots} at once: {least:.0f}/s", rate / least),
    ]
    for part in PARTS:
        most, values = jobs.TARGETS_MS.get(part), [one[part] for one in found]
        target = ("", None) if most is None else (f"≤ {most:g} ms", now[part] <= most)
        figure, spread = f"{now[part]:.1f} ms", f"{min(values):.1f} to {max(values):.1f}"
        rows.append(Row(f"CPU a job: {PARTS[part]}", figure, spread, None, *target))
    return rows


PARTS = {
    "server": "server",
    "server main": "server, of it the thread of its event loop",
    "agent": "agent",
    "agent main": "agent, of it the thread of its event loop",
    "chain": "chain (the programs that the agent starts)",
    "client": "client (16 of them in the process that measures)",
    "all": "the whole machine, with the kernel's threads",
}
