"""Small jobs through a real server and a real agent, and what they cost."""

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from tests.bench import bare
from tests.bench.table import median
from tests.kit.programs import Program, form
from tests.kit.raw_archives import FORM

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
HEADERS: Final = {"Content-Type": FORM}
BODY: Final = form({"run.sh": bare.HELLO})
AT_ONCE: Final = 16
"""Clients that each have one job under way."""
ROUND: Final = 150
"""Jobs of one measurement."""
WARM_UP: Final = 20
_PAGES_COMPILED_S: Final = 5.0
"""After its start a server compiles the templates of its pages, which costs no job anything."""
TARGETS_MS: Final = {"server": 5.0, "agent": 6.0, "chain": 7.5}
"""CPU a job."""


@asynccontextmanager
async def running(
    folder: Path, agents: int = 1, config: str = CONFIG
) -> AsyncIterator[tuple[Program, ...]]:
    file, mark = folder / "ferryman.toml", uuid.uuid4().hex
    given = ("--config", str(file))
    server = Program("server", folder, mark, *given)
    started = []
    for number in range(agents):
        home = folder if agents == 1 else folder / f"agent{number}"
        home.mkdir(parents=True, exist_ok=True)
        started.append(Program("client_agent", home, mark, *given))
        config += f"[agents.a{number}]\nurl = '{started[-1].url}'\nservices = ['example']\n"
    file.write_text(config)
    try:
        for few in [started[at : at + 4] for at in range(0, agents, 4)]:
            await asyncio.gather(*(asyncio.to_thread(agent.start) for agent in few))
        await asyncio.to_thread(server.start)
        async with aiohttp.ClientSession(server.url) as session:
            while True:
                async with session.get("/health") as answer:
                    states = list((await answer.json())["agents"].values())
                if states.count("up") == agents:
                    break
                await asyncio.sleep(0.05)
        await asyncio.sleep(_PAGES_COMPILED_S)
        yield (server, *started)
    finally:
        for program in (server, *started):
            if program.runs:
                await asyncio.to_thread(program.kill)


async def upload(session: aiohttp.ClientSession, data: bytes = BODY) -> int:
    async with session.post("/upload", data=data, headers=HEADERS) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


async def one(session: aiohttp.ClientSession, data: bytes = BODY) -> tuple[float, float]:
    """Upload, wait, download. Seconds from the answer to the end, and in all."""
    start = time.perf_counter()
    job_id = await upload(session, data)
    answered = time.perf_counter()
    async with session.get(f"/download/{job_id}", params={"wait": "60"}) as answer:
        assert answer.content_type == "application/zip", await answer.text()
        await answer.read()
    end = time.perf_counter()
    return end - answered, end - start


async def many(session: aiohttp.ClientSession, count: int, bodies: Iterable[bytes] = ()) -> float:
    """Seconds of so many jobs, ``AT_ONCE`` clients at a time, with these bodies in turn."""
    left = itertools.islice(bodies or itertools.repeat(BODY), count)

    async def client() -> None:
        for data in left:
            await one(session, data)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return time.perf_counter() - start


async def round_of(
    server: Program, agents: Sequence[Program], bodies: Iterable[bytes] = ()
) -> dict[str, float]:
    """Jobs a second as "rate", and the CPU of a job by program in milliseconds.

    "all" is all that the processors did meanwhile, threads of the kernel included: meaningful
    where nothing else runs.
    """
    async with aiohttp.ClientSession(server.url) as session:
        before = _used(server, agents)
        took = await many(session, ROUND, bodies)
        after = _used(server, agents)
    cost = {name: (after[name] - before[name]) / ROUND * 1e3 for name in before}
    return {"rate": ROUND / took} | cost


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median([one[name] for one in rounds]) for name in rounds[0]}


def _used(server: Program, agents: Iterable[Program]) -> dict[str, float]:
    return {
        "server": cpu_s(server),
        "server main": main_thread_s(server),
        "agent": sum(cpu_s(agent) for agent in agents),
        "agent main": sum(main_thread_s(agent) for agent in agents),
        "chain": sum(children_s(agent) for agent in agents),
        "client": time.process_time(),
        "all": machine_s(),
    }


def cpu_s(program: Program) -> float:
    own = _times(program)
    return own[0] + own[1]


def main_thread_s(program: Program) -> float:
    """CPU seconds of the thread that runs the event loop."""
    pid = program.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def children_s(program: Program) -> float:
    """CPU seconds of the children that it has waited for, and of those that they have."""
    own = _times(program)
    return own[2] + own[3]


def machine_s() -> float:
    """CPU seconds of everything on the machine, threads of the kernel included."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, _ = map(int, words)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _times(program: Program) -> list[float]:
    """User and system, its own and its children's, in seconds."""
    words = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
    return [int(word) / os.sysconf("SC_CLK_TCK") for word in words[11:15]]


def memory_mib(program: Program, what: str = "VmRSS") -> float:
    """Resident now; or VmHWM, the most."""
    status = Path(f"/proc/{program.pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024
