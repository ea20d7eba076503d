"""job-orchestrator and ours in turns: the same jobs, uploaded at once and waited for.

It is a program of others (``cargo install job-orchestrator``); without it on the PATH nothing is
measured.
"""

import asyncio
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import aiohttp

from tests.bench import bare, jobs
from tests.bench.table import Row, median
from tests.kit.programs import form, free_port, until

NAME: Final = "job-orchestrator"
T = TypeVar("T")
Made = TypeVar("Made")
_SCRIPT: Final = b"trap 'echo $? >.orchestrator.exit' EXIT\n" + bare.HELLO
"""It needs the trap. Ours does not, but gets the same."""
_POLL_S: Final = 0.02
"""It cannot be waited for: each client asks again after this time."""
_RUNS: Final = 1_000
"""More than there are jobs: its agent then starts each one as soon as it has it."""


async def beside(folder: Path, count: int, rounds: int) -> list[Row]:
    """Jobs a second of batches, and the CPU of the whole machine for each job."""
    program = shutil.which(NAME)
    if program is None:
        return [Row(NAME, "", f"not on the PATH: cargo install {NAME}")]
    rates, cpu, alone = [{"ours": list[float](), "theirs": list[float]()} for _ in range(3)]
    lost = dict.fromkeys(rates, 0)
    async with (
        jobs.running(folder / "ours") as both,
        _theirs(program, folder) as (url, both_of_theirs),
    ):
        urls = {"ours": both[0].url, "theirs": url}
        for number in range(-1, rounds):
            for name, at in urls.items():
                for process in both_of_theirs:  # its loops cost more than our idle programs
                    process.send_signal(signal.SIGSTOP if name == "ours" else signal.SIGCONT)
                before = jobs.machine_s()
                took, without_result = await _batch(at, count if number >= 0 else 20)
                used = jobs.machine_s() - before
                single, _ = await _batch(at, 1)
                if number >= 0:  # the first warms up
                    rates[name].append(count / took)
                    cpu[name].append(used / count * 1e3)
                    alone[name].append(single)
                    lost[name] += without_result
    assert lost["ours"] == 0, lost
    said = f"; it lost {lost['theirs']} of {rounds * count}" if lost["theirs"] else ""
    ours, theirs = median(rates["ours"]), median(rates["theirs"])
    used, used_theirs = median(cpu["ours"]), median(cpu["theirs"])
    one, one_theirs = median(alone["ours"]) * 1e3, median(alone["theirs"]) * 1e3
    what, against = "jobs a second, {} batches of {}", f"{NAME}, without a sandbox: {theirs:.1f}/s"
    what, rate = what.format(rounds, count), f"{ours:.1f}/s"
    costs = "CPU of the whole machine for each of them", f"{used:.1f} ms", f"{used_theirs:.1f} ms"
    lone = "one job alone, from upload to result", f"{one:.0f} ms", f"{one_theirs:.0f} ms"
    return [
        Row(what, rate, against + said, ours / theirs, "≥ 3", ours / theirs >= 3),
        Row(*costs, used / used_theirs),
        Row(*lone, one / one_theirs),
    ]


async def _batch(url: str, count: int) -> tuple[float, int]:
    """Seconds from the first upload to the last end, with the clients of the other benches; and
    how many jobs have no result."""
    async with aiohttp.ClientSession(url) as session:
        start = time.perf_counter()
        ids = await _shared(range(count), lambda _: jobs.upload(session, form({"run.sh": _SCRIPT})))
        fetched = await _shared(ids, lambda job_id: _fetched(session, job_id))
        return time.perf_counter() - start, fetched.count(False)


async def _shared(items: Iterable[T], work: Callable[[T], Awaitable[Made]]) -> list[Made]:
    """What ``work`` makes of each, ``jobs.AT_ONCE`` at a time."""
    left = iter(items)

    async def client() -> list[Made]:
        return [await work(item) for item in left]

    made = await asyncio.gather(*(client() for _ in range(jobs.AT_ONCE)))
    return list(itertools.chain.from_iterable(made))


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


@asynccontextmanager
async def _theirs(
    program: str, folder: Path
) -> AsyncIterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Its server's address; the processes of its server and its client."""
    agent = free_port()
    place = f"http://127.0.0.1:{agent}"
    quotas = {"RUNS_PER_USER": str(_RUNS), "MAX_RUNS": str(_RUNS)}
    places = {"UPLOAD": "submit", "DOWNLOAD": "retrieve", "TERMINATE": "kill"}
    urls = {f"{name}_URL": f"{place}/{last}" for name, last in places.items()}
    service = {f"SERVICE_EXAMPLE_{name}": value for name, value in (quotas | urls).items()}
    server = free_port()
    with (
        _running(program, "client", agent, folder / "client") as client_process,
        _running(program, "server", server, folder / "server", **service) as server_process,
    ):
        url = f"http://127.0.0.1:{server}"
        for port in (agent, server):
            await asyncio.to_thread(until, partial(_listens, port), f"{NAME} does not listen")
        yield url, [server_process, client_process]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _running(
    program: str, role: str, port: int, folder: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True)
    own = {"PORT": str(port), "DB_PATH": str(folder / "db.sqlite"), "DATA_PATH": str(folder / "d")}
    env = {"PATH": os.environ["PATH"], "MAX_AGE": "864000", "RUST_LOG": "error"} | own | more
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, role], env=env, stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
