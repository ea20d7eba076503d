"""``python -m tests.bench.growth [--quick] [AXIS …]``: what a job costs beside others.

Prints a table in Markdown. The systems that an axis compares run at the same time, and their
rounds take turns.
"""

import argparse
import asyncio
import itertools
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.bench import bare, jobs
from tests.bench.bulk import fill
from tests.bench.table import median
from tests.kit.programs import Program, form

SLOTS: Final = (os.cpu_count() or 1) + 1
"""One of them is taken where a job holds its user's quota."""
CONFIG: Final = f"""
[services.example]
runs_per_user = 64
max_runs = 1000
[services.nowhere]
[server]
log_level = "warning"
[agent]
log_level = "warning"
slots = {SLOTS}
"""
ONE_AT_ONCE: Final = "[users.user0]\nruns_per_user = 1\n"
HELLO: Final = {"run.sh": bare.HELLO}
HOLDS: Final = form({"run.sh": "sleep 3000\n"}, user_id="user0", priority="100")
YEARS: Final = 1 << 60


@dataclass(frozen=True)
class Axis:
    """What grows.

    Attributes:
        counts: how many there are; what there are few of comes first.
        rows: what is in the database, as :func:`tests.bench.bulk.fill` makes it; None: nothing.
        held: the user of the rows has a job running, and the quota allows no other.
    """

    counts: tuple[int, ...]
    rows: dict[str, Any] | None = None
    held: bool = False


JOBS: Final = (1, 1_000, 1_000_000)
AXES: Final = {
    "queued": Axis(JOBS, {"state": "Queued", "users": 1}, held=True),
    "queued-elsewhere": Axis(JOBS, {"state": "Queued", "service": "nowhere"}),
    "delayed": Axis(JOBS, {"state": "Queued", "not_before": YEARS}),
    "ended": Axis(JOBS, {"state": "Completed"}),
    "users": Axis((1, 1_000), {"state": "Completed"}),
    "agents": Axis((1, 10, 100)),
}


COLUMNS: Final = {
    "rate": "jobs/s",
    "server": "server, ms",
    "agent": "agent, ms",
    "chain": "chain, ms",
    "p50": "p50 alone, ms",
    "server MiB": "server, MiB",
}


@asynccontextmanager
async def system(name: str, count: int, folder: Path) -> AsyncIterator[tuple[Program, ...]]:
    axis = AXES[name]
    if axis.rows is not None:
        database, users = folder / "server" / "ferryman.sqlite", name == "users"
        given = axis.rows | ({"users": count} if users else {})
        await fill(database, max(axis.counts) if users else count, **given)
        if axis.held:
            with closing(sqlite3.connect(database, isolation_level=None)) as raw:
                raw.execute("INSERT INTO services (name, paused) VALUES ('example', 1)")
        os.sync()  # else the commits of the jobs wait for it
    agents = count if name == "agents" else 1
    async with jobs.running(folder, agents, CONFIG + ONE_AT_ONCE * axis.held) as programs:
        if axis.held:
            await hold(programs[0])
        async with aiohttp.ClientSession(programs[0].url) as session:
            await jobs.many(session, jobs.WARM_UP)
        yield programs


async def hold(server: Program) -> None:
    """A job that runs until the end uses the quota of the user whose jobs wait. The service was
    paused until now, so none of these was sent."""
    async with aiohttp.ClientSession(server.url) as session:
        job_id = await jobs.upload(session, HOLDS)
        async with session.post("/api/v1/services/example/resume") as answer:
            assert answer.status == 200, await answer.text()
        while True:
            async with session.get(f"/api/v1/jobs/{job_id}") as answer:
                status = (await answer.json())["status"]
            if status == "Running":
                return
            assert status in ("Queued", "Processing", "Submitted", "Prepared"), status
            await asyncio.sleep(0.05)


async def measure(
    name: str, folder: Path, rounds: int, counts: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Figures by how many others there are."""
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    async with AsyncExitStack() as stack:
        systems, bodies = {}, {}
        for count in counts:
            users = count if name == "users" else 1
            whose = "somebody" if AXES[name].held else "user"
            uploads = [form(HELLO, user_id=f"{whose}{user}") for user in range(users)]
            bodies[count] = itertools.cycle(uploads)
            one = system(name, count, folder / str(count))
            systems[count] = await stack.enter_async_context(one)
        for number in range(rounds):
            for count, (server, *agents) in sorted(systems.items(), reverse=bool(number % 2)):
                figures = await jobs.round_of(server, agents, bodies[count])
                figures["p50"] = await alone(server, bodies[count])
                figures["server MiB"] = jobs.memory_mib(server)
                found[count].append(figures)
    return {count: jobs.medians(figures) for count, figures in found.items()}


async def alone(server: Program, bodies: Iterator[bytes]) -> float:
    """Milliseconds from the answer to the result, one job at a time."""
    async with aiohttp.ClientSession(server.url) as session:
        times = [(await jobs.one(session, next(bodies)))[0] for _ in range(20)]
    return median(times) * 1e3


def rows(name: str, figures: Mapping[int, Mapping[str, float]]) -> list[str]:
    lines = [f"| {name} | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for count, row in figures.items():
        cells = " | ".join(f"{row[key]:.{int('MiB' not in key)}f}" for key in COLUMNS)
        lines.append(f"| {count:,} | {cells} |")
    return lines


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"default: {', '.join(AXES)}")
    parser.add_argument("--quick", action="store_true", help="fewer, and one round")
    given = parser.parse_args()
    if unknown := [name for name in given.axes if name not in AXES]:
        parser.error(f"no such axis: {unknown[0]}; there are {', '.join(AXES)}")
    folder = Path(tempfile.mkdtemp(prefix="ferryman-growth-"))
    try:
        for name in given.axes or AXES:
            axis = AXES[name]
            counts = [count for count in axis.counts if not given.quick or count <= 10_000]
            print(f"measuring {name} …", flush=True)
            rounds = 1 if given.quick else 3
            figures = await measure(name, folder / name, rounds, counts)
            print("\n".join(rows(name, figures)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
