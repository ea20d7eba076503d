"""Small jobs through a real server and real agents, and what they cost."""

import asyncio
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp

from tests.bench import bare
from tests.bench.table import median
from tests.kit.programs import Program, call, form, until
from tests.kit.raw_archives import FORM

CONFIG: Final = """
[services.nowhere]
[services.example]
runs_per_user = 500
max_runs = 1000
pack = {pack}
limits = {{ disk = "20GiB", results = "20GiB" }}
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
_WARM_UP: Final = 20
_PAGES_COMPILED_S: Final = 5.0
"""After its start a server compiles the templates of its pages, which costs no job anything."""


@contextmanager
def running(folder: Path, agents: int = 1, pack: int = 0) -> Iterator[tuple[Program, ...]]:
    """A server and its agents, all of them up."""
    file, mark, config = folder / "ferryman.toml", uuid.uuid4().hex, CONFIG.format(pack=pack)
    server = Program("server", folder, mark, "--config", str(file))
    programs = [server]
    for number in range(agents):
        home = folder / f"agent{number}"
        home.mkdir(parents=True)
        programs.append(Program("client_agent", home, mark, "--config", str(file)))
        config += f"[agents.a{number}]\nurl = '{programs[-1].url}'\nservices = ['example']\n"
    file.write_text(config)

    def all_up() -> bool:
        return call(server.url, "GET", "/health")[1].count(b'"up"') == agents

    try:
        for program in reversed(programs):
            program.start()
        until(all_up, "an agent is not up")
        time.sleep(_PAGES_COMPILED_S)
        yield tuple(programs)
    finally:
        for program in programs:
            if program.runs:
                program.kill()


async def upload(session: aiohttp.ClientSession, data: bytes = BODY) -> int:
    async with session.post("/upload", data=data, headers=HEADERS) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


async def one(session: aiohttp.ClientSession, data: bytes = BODY) -> float:
    """Upload, wait, download. Seconds from the answer to the end."""
    job_id = await upload(session, data)
    answered = time.perf_counter()
    async with session.get(f"/download/{job_id}", params={"wait": "60"}) as answer:
        assert answer.content_type == "application/zip", await answer.text()
        await answer.read()
    return time.perf_counter() - answered


async def many(session: aiohttp.ClientSession, count: int = _WARM_UP) -> float:
    """Seconds of so many jobs, ``AT_ONCE`` clients at a time."""
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await one(session)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return time.perf_counter() - start


async def round_of(server: Program, agents: Sequence[Program]) -> dict[str, float]:
    """Jobs a second as "rate", and the CPU of a job as :func:`used` has it, in milliseconds."""
    async with aiohttp.ClientSession(server.url) as session:
        before = used(server, agents)
        took = await many(session, ROUND)
        return {"rate": ROUND / took} | costs(before, used(server, agents), ROUND)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median([one[name] for one in rounds]) for name in rounds[0]}


def used(server: Program, agents: Iterable[Program]) -> dict[str, float]:
    """CPU seconds of the programs, of the "chain" that agents start and wait for, of this process,
    and of the whole machine, threads of the kernel included: meaningful where nothing else runs.
    """
    ours = [_times(agent) for agent in agents]
    return {
        "server": sum(_times(server)[:2]),
        "agent": sum(sum(one[:2]) for one in ours),
        "chain": sum(sum(one[2:]) for one in ours),
        "client": time.process_time(),
        "all": machine_s(),
    }


def costs(before: dict[str, float], after: dict[str, float], count: int) -> dict[str, float]:
    return {name: (after[name] - before[name]) / count * 1e3 for name in before}


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
