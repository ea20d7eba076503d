"""``python -m tests.bench.sizing [--quick] [--write]``: the figures of ``docs/sizing.md``.

It takes about five minutes. ``make sizing`` writes them into the page."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from ferryman.bench.document import BenchDoc
from tests.bench.bulk import fill
from tests.bench.jobs import cpu_s
from tests.bench.listeners import rss_kib
from tests.support.dev_program import ROOT, environment
from tests.support.programs import Program

PAGE = ROOT / "docs/sizing.md"
BEGIN, END = "<!-- figures: make sizing -->", "<!-- end of figures -->"
QUOTAS = """
[services.example]
runs_per_user = 10000
max_runs = 10000
limits = { disk = "20GiB", results = "20GiB" }
[server]
log_level = "warning"
"""
MIB = 1 << 20


@dataclass
class Figure:
    """A row of the table."""

    what: str
    value: str
    how: str


class System:
    """A server, with a real agent or with fake ones."""

    def __init__(self, server: Program, agent: Program | None) -> None:
        self.server, self.agent = server, agent

    def used(self) -> tuple[float, float]:
        """CPU seconds of server and agent so far, without the jobs."""
        return cpu_s(self.server), cpu_s(self.agent) if self.agent else 0.0

    def mib(self) -> tuple[float, float]:
        """Resident memory of both."""
        return rss_kib(self.server) / 1024, rss_kib(self.agent) / 1024 if self.agent else 0.0

    def stop(self) -> None:
        """Both end as on SIGTERM, so that the database is one file."""
        import signal

        for program in (self.server, self.agent):
            if program is not None and program.process is not None:
                program.kill(signal.SIGTERM)


@asynccontextmanager
async def system(folder: Path, slots: int, fake: Sequence[str] = ()) -> AsyncIterator[System]:
    """Both, ready for jobs.

    Args:
        fake: addresses of fake agents, in place of a real one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, mark = folder / "ferryman.toml", uuid.uuid4().hex
    lines = [QUOTAS, f"[agent]\nlog_level = 'warning'\nslots = {slots}\n"]
    lines += [f"[agents.fake-{at}]\nurl = '{url}'\n" for at, url in enumerate(fake)]
    config.write_text("".join(lines))
    agent = None if fake else Program("client_agent", folder, mark, "--config", str(config))
    flags = () if agent is None else ("--agent-url", agent.url)
    server = Program("server", folder, mark, "--config", str(config), *flags)
    try:
        if agent is not None:
            await asyncio.to_thread(agent.start)
        await asyncio.to_thread(server.start)
        async with aiohttp.ClientSession(server.url) as session:
            while True:
                async with session.get("/health") as answer:
                    states = list((await answer.json())["agents"].values())
                if states.count("up") == max(1, len(fake)):
                    break
                await asyncio.sleep(0.1)
        yield System(server, agent)
    finally:
        for program in (server, agent):
            process = None if program is None else program.process
            if program is not None and process is not None and process.poll() is None:
                await asyncio.to_thread(program.kill)


@asynccontextmanager
async def fakes(count: int, slots: int) -> AsyncIterator[list[str]]:
    """Addresses of fake agents."""
    words = [sys.executable, "-P", "-c", "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "]
    words[-1] += "runpy.run_module('tests.bench.many_agents', run_name='__main__', alter_sys=True)"
    process = await asyncio.create_subprocess_exec(
        *(*words, str(ROOT), str(count), str(slots)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield [(await process.stdout.readline()).decode().strip() for _ in range(count)]
    finally:
        process.stdin.close()
        await process.wait()


async def bench(server: Program, *words: str) -> BenchDoc:
    """``ferryman bench``, as a user runs it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "ferryman", "bench", "-s", "example", "-q", "--json"),
        *("--keep", "--patience", "5m", "--url", server.url, *words),
        env=environment(),
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out[-2000:]
    return BenchDoc.model_validate_json(out)


def ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.0f} ms"


async def job_size(folder: Path, jobs: int) -> tuple[float, float]:
    """Bytes of the database, and of bundles and results, for a job."""
    data, bare = folder / "server", folder / "empty" / "ferryman.sqlite"
    await fill(bare, 0, "Queued")
    empty = sum(path.stat().st_size for path in bare.parent.glob("ferryman.sqlite*"))
    kinds = ("bundles", "results")
    found = [path for kind in kinds for path in (data / kind).rglob("*") if path.is_file()]
    files = sum(path.stat().st_size for path in found)
    database = sum(path.stat().st_size for path in data.glob("ferryman.sqlite*"))
    return (database - empty) / jobs, files / jobs


async def small(folder: Path, short: float) -> list[Figure]:
    """Small jobs as fast as this machine does them, load generator included."""
    slots = os.cpu_count() or 1
    async with system(folder, slots) as both:
        await bench(both.server, "--jobs", "20")
        cpu, before = both.used(), both.mib()
        words = ("--concurrency", "16", "--duration", f"{60 * short:.0f}s", "--users", "8")
        found = await bench(both.server, *words)
        after = both.mib()
        server, agent = (b - a for a, b in zip(cpu, both.used(), strict=True))
        both.stop()
    done = found.counts.completed
    database, files = await job_size(folder, done + 20)
    times = found.latencies
    how = f"closed loop, 16 at a time, 1 KiB bundles that end at once, {done} jobs"
    return [
        Figure("small jobs a second", f"{found.rates.completed:.1f}", how),
        Figure("the same a day", f"{found.rates.completed * 86_400:,.0f}", ""),
        Figure(
            "from accepted to the start of `run.sh`, p50 · p99",
            f"{ms(times.to_start.p50_s)} · {ms(times.to_start.p99_s)}",
            f"of these; {slots} slots are shared by 16",
        ),
        Figure("upload, p50 · p99", f"{ms(times.upload.p50_s)} · {ms(times.upload.p99_s)}", ""),
        Figure(
            "CPU a job: server · agent, without sandbox and job",
            f"{server / done * 1000:.1f} · {agent / done * 1000:.1f} ms",
            "",
        ),
        Figure("database a job", f"{database / 1024:.1f} KiB", "row, attempt, events, indexes"),
        Figure("bundle and result of a job of 1 KiB", f"{files / 1024:.1f} KiB", "stored ZIPs"),
        Figure("memory: server · agent", f"{after[0]:.0f} · {after[1]:.0f} MiB", "after these"),
        Figure(
            "its growth for 1,000 jobs: server · agent",
            " · ".join(f"{(b - a) / done * 1000:+.1f}" for a, b in zip(before, after, strict=True))
            + " MiB",
            "caches fill at first; the soak shows that it stays flat",
        ),
    ]


async def waiting(folder: Path, short: float) -> list[Figure]:
    """Jobs that wait and do not compute: what a slot costs."""
    async with system(folder, 32) as both:
        words = ("--concurrency", "48", "--run-time", "4s", "--duration", f"{30 * short:.0f}s")
        found = await bench(both.server, *words)
        memory = both.mib()
    return [
        Figure(
            "a slot is held beyond the run time, p50",
            ms(found.latencies.overhead.p50_s),
            f"32 slots, {found.counts.completed} jobs that sleep 4 s, "
            f"{found.rates.completed:.1f} a second",
        ),
        Figure("memory of an agent with 32 running jobs", f"{memory[1]:.0f} MiB", "its own"),
    ]


async def large(folder: Path, short: float) -> list[Figure]:
    """Large bundles."""
    async with system(folder, 2) as both:
        words = ("--concurrency", "3", "--jobs", f"{max(4, 24 * short):.0f}", "--size", "64MiB")
        found = await bench(both.server, *words)
        memory = both.mib()
    rate = found.rates.uploaded_bytes / 1e6
    return [
        Figure(
            "bundles of 64 MiB, through to the result",
            f"{rate:.0f} MB/s",
            f"{found.counts.completed} jobs, 3 at a time; uploaded, sent, packed, fetched",
        ),
        Figure("memory after them: server · agent", f"{memory[0]:.0f} · {memory[1]:.0f} MiB", ""),
    ]


async def server_alone(folder: Path, short: float) -> list[Figure]:
    """What the server does where agents are elsewhere: 20 fake ones, whose jobs end at once."""
    async with fakes(20, 4) as urls, system(folder, 4, urls) as one:
        await bench(one.server, "--jobs", "20")
        cpu = one.used()[0]
        words = ("--concurrency", "32", "--duration", f"{30 * short:.0f}s", "--users", "8")
        found = await bench(one.server, *words)
        used = (one.used()[0] - cpu) / found.counts.completed
    return [
        Figure(
            "the server alone, agents faked",
            f"{found.rates.completed:.0f} jobs/s, {used * 1000:.1f} ms of CPU each",
            "20 agents; load generator and fakes on the same two cores",
        ),
        Figure(
            "so one core of a server does at most",
            f"{1 / used:.0f} jobs/s, {86_400 / used / 1e6:.1f} million a day",
            "by division",
        ),
    ]


async def agents(folder: Path, short: float) -> list[Figure]:
    """What agents without jobs cost the server."""
    found: dict[int, tuple[float, float]] = {}
    seconds = max(3.0, 12 * short)
    for count in (1, 50, 200):
        async with fakes(count, 4) as urls, system(folder / str(count), 4, urls) as one:
            await asyncio.sleep(5)  # the first sweeps are not idling
            cpu = one.used()[0]
            await asyncio.sleep(seconds)
            found[count] = ((one.used()[0] - cpu) / seconds, one.mib()[0])
    more_cpu = (found[200][0] - found[1][0]) / 199
    more_kib = (found[200][1] - found[1][1]) / 199 * 1024
    each = " · ".join(f"{cpu * 100:.1f} %" for cpu, _ in found.values())
    return [
        Figure("CPU of a server with 1 · 50 · 200 idle agents", each, "of a core"),
        Figure(
            "an idle agent costs the server",
            f"{more_cpu * 100:.2f} % of a core, {more_kib:.0f} KiB",
            "200 against 1",
        ),
    ]


async def queued(folder: Path, short: float) -> list[Figure]:
    """What waiting jobs cost."""
    many = int(max(10_000, 200_000 * short))
    found = {}
    for count in (0, many):
        home = folder / str(count)
        if count:
            await fill(home / "server" / "ferryman.sqlite", count, "Queued")
        async with fakes(1, 0) as urls, system(home, 1, urls) as one:
            await asyncio.sleep(3)
            found[count] = one.mib()[0]
    return [
        Figure(
            f"memory of a server with {many:,} waiting jobs",
            f"{found[many] - found[0]:+.0f} MiB",
            f"{found[0]:.0f} MiB without: they wait in the database",
        )
    ]


CASES = {
    "small": small,
    "waiting": waiting,
    "large": large,
    "server alone": server_alone,
    "agents": agents,
    "queued": queued,
}


def machine(load: Sequence[float], *, quick: bool) -> str:
    """What it was measured on."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    state = "quiet" if load[1] < 0.5 else f"busy with other work (load {load[1]:.1f} before)"
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, {gib:.0f} GiB, Python "
        f"{platform.python_version()}, the machine {state}. Load generator, server, agent and jobs "
        "shared it." + " It was a `--quick` run: a tenth of the time." * quick
    )


def table(figures: Sequence[Figure], load: Sequence[float], *, quick: bool = False) -> str:
    lines = [machine(load, quick=quick), "", "| what | figure | how |", "|---|---|---|"]
    lines += [f"| {one.what} | {one.value} | {one.how} |" for one in figures]
    return "\n".join(lines)


def written(page: str, figures: str) -> str:
    """The page with these figures."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{figures}\n{END}{tail}"


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sizing", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    parser.add_argument("--write", action="store_true", help="write them into docs/sizing.md")
    given = parser.parse_args()
    load, figures = os.getloadavg(), list[Figure]()
    for name in given.cases or CASES:
        folder = Path(tempfile.mkdtemp(prefix="ferryman-sizing-"))
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        try:
            figures += await CASES[name](folder, 0.1 if given.quick else 1.0)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    found = table(figures, load, quick=given.quick)
    print(found)
    if given.write:
        PAGE.write_text(written(PAGE.read_text(), found))


if __name__ == "__main__":
    asyncio.run(main())
