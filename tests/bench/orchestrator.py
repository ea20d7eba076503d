"""job-orchestrator and ours in turns: the same jobs, uploaded at once and waited for.

It is a program of others (``cargo install job-orchestrator``); without it on the PATH nothing is
measured.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import aiohttp

from tests.bench import bare, jobs
from tests.bench.table import Row
from tests.kit.programs import form, free_port, listens, other_program

NAME: Final = "job-orchestrator"
T = TypeVar("T")
_BODY: Final = form({"run.sh": b"trap 'echo $? >.orchestrator.exit' EXIT\n" + bare.HELLO})
"""It needs the trap. Ours does not, but gets the same."""
_POLL_S: Final = 0.02
"""It cannot be waited for: each client asks again after this time."""


async def beside(folder: Path, count: int, rounds: int) -> list[Row]:
    """Jobs a second of batches, and the CPU of the whole machine for each job."""
    program = shutil.which(NAME)
    if program is None:
        return [Row(NAME, "", f"not on the PATH: cargo install {NAME}")]
    figures: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    with (
        jobs.running(folder / "ours") as (server, _),
        _theirs(program, folder) as (url, both_of_theirs),
    ):
        for number in range(-1, rounds):
            for name, found in figures.items():
                for process in both_of_theirs:  # its loops cost more than our idle programs
                    process.send_signal(signal.SIGSTOP if name == "ours" else signal.SIGCONT)
                at, before = server.url if name == "ours" else url, jobs.machine_s()
                took, lost = await _batch(at, count if number >= 0 else 20)
                used = jobs.machine_s() - before
                alone, _lost = await _batch(at, 1)
                if number >= 0:  # the first warms up
                    cost = {"rate": count / took, "ms": used / count * 1e3, "lost": lost}
                    found.append(cost | {"alone": alone * 1e3})
    ours, theirs = (jobs.medians(found) for found in figures.values())
    lost_of_ours, lost_of_theirs = (sum(one["lost"] for one in found) for found in figures.values())
    assert lost_of_ours == 0, lost_of_ours
    said = f"{NAME}, without a sandbox: {theirs['rate']:.1f}/s, lost {lost_of_theirs:.0f}"
    ratio, what = ours["rate"] / theirs["rate"], f"jobs a second, {rounds} batches of {count}"
    rows = [Row(what, f"{ours['rate']:.1f}/s", said, ratio, "≥ 2", ratio >= 2)]
    for key, what in (
        ("ms", "CPU of the whole machine for each of them"),
        ("alone", "one job alone, from upload to result"),
    ):
        both = f"{ours[key]:.1f} ms", f"{theirs[key]:.1f} ms"
        rows.append(Row(what, *both, ours[key] / theirs[key]))
    return rows


async def _batch(url: str, count: int) -> tuple[float, int]:
    """Seconds from the first upload to the last end, with the clients of the other benches; and
    how many jobs have no result."""
    clients = asyncio.Semaphore(jobs.AT_ONCE)

    async def by_a_client(work: Awaitable[T]) -> T:
        async with clients:
            return await work

    async with aiohttp.ClientSession(url) as session:
        start = time.perf_counter()
        uploads = [by_a_client(jobs.upload(session, _BODY)) for _ in range(count)]
        ids = await asyncio.gather(*uploads)
        fetched = await asyncio.gather(*(by_a_client(_fetched(session, one)) for one in ids))
        return time.perf_counter() - start, fetched.count(False)


async def _fetched(session: aiohttp.ClientSession, job_id: int) -> bool:
    """Whether its result came, once it has ended; ours knows ``wait``, theirs answers at once."""
    while True:
        async with session.get(f"/download/{job_id}", params={"wait": "60"}) as answer:
            if answer.content_type == "application/zip":
                await answer.read()
                return True
            if (await answer.json())["status"] in ("Failed", "Invalid", "Killed", "Lost"):
                return False
        await asyncio.sleep(_POLL_S)


@contextmanager
def _theirs(program: str, folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Its server's address; the processes of its client, which runs the jobs, and its server. The
    quotas are more than there are jobs: each starts as soon as the client has it."""
    ports = {"client": free_port(), "server": free_port()}
    env = {"PATH": os.environ["PATH"], "MAX_AGE": "864000", "RUST_LOG": "error"}
    service = {"RUNS_PER_USER": "1000", "MAX_RUNS": "1000"}
    for name, last in {"UPLOAD": "submit", "DOWNLOAD": "retrieve", "TERMINATE": "kill"}.items():
        service[f"{name}_URL"] = f"http://127.0.0.1:{ports['client']}/{last}"
    env |= {f"SERVICE_EXAMPLE_{name}": value for name, value in service.items()}
    with ExitStack() as stack:
        processes = []
        for role, port in ports.items():
            home = folder / role
            home.mkdir(parents=True)
            env |= {"PORT": str(port), "DB_PATH": f"{home}/db", "DATA_PATH": f"{home}/data"}
            how = {"env": {**env}, "cwd": home}
            ready = partial(listens, port)
            one = other_program([program, role], home / "log", ready, **how)
            processes.append(stack.enter_context(one))
        yield f"http://127.0.0.1:{ports['server']}", processes
