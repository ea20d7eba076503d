"""Latency, rate and CPU of small jobs through server and agent, and of an array of them."""

import os
import time
from pathlib import Path

import aiohttp

from client_agent.sandbox.base import SandboxSettings
from shared.wire import Limits
from tests.bench import bare, jobs
from tests.bench.table import Row, compared, median, percentile
from tests.kit.programs import form

PARTS = ("server", "agent", "chain")
TARGETS_MS = (5.0, 5.0, 7.5)
PACK = 50


async def latency(folder: Path, count: int) -> list[Row]:
    """One job at a time; beside each a bare chain, which nobody watches."""
    ours, chains = list[float](), list[float]()
    settings = SandboxSettings(disk_images=False)
    async with bare.sandbox(folder / "bare", settings) as found:
        workspace = await found.prepare("chain", bare.SLOT, Limits())
        bare.write_script(workspace)
        os.fchmod(workspace.fd, 0o755)  # for a root that has no rights over files in its namespace
        tree = await found.use_tree(network=False)
        with jobs.running(folder / "run") as (server, _):
            async with aiohttp.ClientSession(server.url) as session:
                await jobs.many(session)
                for _ in range(count):
                    ours.append(await jobs.one(session))
                    chains.append(await found.in_thread(bare.chain, found, workspace, tree))
        await workspace.destroy()
    base = median(chains)
    return [
        compared(
            f"idle latency p{share * 100:.0f}, answered → downloaded",
            percentile(ours, share),
            "the bare chain, p50",
            base,
            times=most,
        )
        for share, most in ((0.5, 1.6), (0.99, 4.0))
    ]


def _parts(cost: dict[str, float], parts: tuple[str, ...] = PARTS) -> str:
    return " · ".join(f"{cost[part]:.1f}" for part in parts) + " ms"


async def throughput(folder: Path, rounds: int) -> list[Row]:
    """Jobs a second and their CPU, beside bare spawns at the parallelism of the agent's slots;
    medians of rounds that take turns."""
    slots = os.cpu_count() or 1
    spawns, found = list[float](), list[dict[str, float]]()
    async with bare.sandbox(folder / "bare") as sandbox:
        with jobs.running(folder / "run") as (server, *agents):
            async with aiohttp.ClientSession(server.url) as session:
                await jobs.many(session)
            for _ in range(rounds):
                spawns.append(await bare.spawns(sandbox, folder, slots, 40))
                found.append(await jobs.round_of(server, agents))
    now, base = jobs.medians(found), median(spawns)
    what = f"small jobs, {jobs.AT_ONCE} clients, {rounds} × {jobs.ROUND}"
    rate, against = now["rate"], f"our bare sandbox, {slots} at once: {base:.1f}/s"
    target = "≤ " + " · ".join(f"{most:g}" for most in TARGETS_MS)
    met = all(now[part] <= most for part, most in zip(PARTS, TARGETS_MS, strict=True))
    cpu = f"CPU a job, {jobs.AT_ONCE} at once"
    machine = _parts(now, ("client", "all"))
    return [
        Row(what, f"{rate:.1f}/s", against, rate / base, "≥ 0.6", rate >= 0.6 * base),
        Row(f"{cpu}: server · agent · chain", _parts(now), target=target, met=met),
        Row(f"{cpu}: client · the whole machine, with the kernel's threads", machine),
    ]


async def array(folder: Path, count: int) -> list[Row]:
    """Children of one upload a second, each with a sandbox of its own and packed, beside jobs that
    are uploaded one by one."""
    singles = max(50, count // 10)
    rates, cost, alone = list[float](), list[dict[str, float]](), 0.0
    for pack in (0, PACK):
        with jobs.running(folder / f"pack{pack}", pack=pack) as (server, *agents):
            async with aiohttp.ClientSession(server.url) as session:
                await jobs.many(session)
                if not pack:
                    alone = singles / await jobs.many(session, singles)
                before = jobs.used(server, agents)
                rates.append(count / await _array(session, count))
                cost.append(jobs.costs(before, jobs.used(server, agents), count))
    each, packed = rates
    return [
        Row(
            f"array of {count}, children a second: each in a sandbox · pack = {PACK}",
            f"{each:.0f} · {packed:.0f}/s",
            f"jobs one by one {alone:.0f}/s",
            packed / alone,
            "≥ 5",
            packed >= 5 * alone,
        ),
        Row("CPU a child, each in a sandbox: server · agent · chain", _parts(cost[0])),
        Row("packed", _parts(cost[1]), target="server ≤ 1.2", met=cost[1]["server"] <= 1.2),
    ]


async def _array(session: aiohttp.ClientSession, count: int) -> float:
    """Seconds from the upload to the last result."""
    start = time.perf_counter()
    job_id = await jobs.upload(session, form({"run.sh": bare.HELLO}, array=f"0-{count - 1}"))
    while True:
        async with session.get(f"/download/{job_id}", params={"wait": "60"}) as answer:
            await answer.read()
        async with session.get(f"/api/v1/jobs/{job_id}") as answer:
            job = await answer.json()
        if job["ended"]:
            assert job["status"] == "Completed", job
            return time.perf_counter() - start
