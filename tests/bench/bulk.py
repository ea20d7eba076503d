"""Large uploads, and dispatching: from a long queue, to many agents, beside many jobs."""

import asyncio
import os
import shutil
import socket
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import aiohttp

from server.domain.choose import Candidate
from server.domain.jobs import Move
from server.domain.service import Service
from server.storage.folder import PREFIX_LEN
from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.bench.jobs import HEADERS, memory_mib, one, running
from tests.bench.table import Row, median
from tests.kit.programs import Program, form
from tests.kit.store import Jobs

MIB = 1 << 20
MARK = b"(here)"


async def upload(folder: Path, size: int, rounds: int) -> list[Row]:
    """Stream one file from a plain socket, beside ``cat`` and fsync of the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    size = min(size, (free - (10 << 30)) // 6)
    source = folder / "source"
    with source.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(4096) * 256)
    ours, copies, growth = [], [], 0.0
    async with running(folder / "run") as (server, _):
        await asyncio.to_thread(_send, server, folder / "small", MIB)
        before = memory_mib(server, "VmHWM")
        for _ in range(rounds):
            copies.append(await asyncio.to_thread(_copy, source, folder / "copy"))
            (folder / "copy").unlink()
            ours.append(await asyncio.to_thread(_send, server, source, size))
            growth = memory_mib(server, "VmHWM") - before
            shutil.rmtree(server.data / "bundles", ignore_errors=True)
            (server.data / "bundles").mkdir()
        down, cats = await _downloads(server, source, size, rounds)
    source.unlink()
    mine, theirs = size / median(ours) / 1e6, size / median(copies) / 1e6
    what, cat = f"upload of {size / 1e9:.1f} GB", f"cat + fsync {theirs:.0f} MB/s"
    grown, ours_down = f"+{growth:.0f} MiB", f"{size / down / 1e6:.0f} MB/s"
    piped = f"cat to a pipe that is read {size / cats / 1e6:.0f} MB/s"
    return [
        Row(what, f"{mine:.0f} MB/s", cat, mine / theirs, "≥ 0.50", mine / theirs >= 0.5),
        Row(f"{what}: memory of the server", grown, "", None, "≤ 64 MiB", growth <= 64),
        Row(f"download of {size / 1e9:.1f} GB", ours_down, piped, cats / down),
    ]


async def _downloads(server: Program, source: Path, size: int, rounds: int) -> tuple[float, float]:
    """Medians of seconds for a result of this size, and for ``cat`` of the same bytes."""
    async with aiohttp.ClientSession(server.url) as session:
        await one(session)
    results = (path for path in (server.data / "results").rglob("*") if path.is_file())
    result = max(results, key=lambda path: path.stat().st_mtime_ns)
    shutil.copyfile(source, result)
    job_id = await asyncio.to_thread(_enlarge, server.data / "ferryman.sqlite", result.name, size)
    # What it stored lately it reads from memory, where the file is as it was.
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    downs, cats = [], []
    for _ in range(rounds):
        command = f"cat {result} | cat > /dev/null"
        cats.append(await asyncio.to_thread(_seconds, command))
        command = f"curl -sf {server.url}/download/{job_id} | wc -c | grep -qx {size}"
        downs.append(await asyncio.to_thread(_seconds, command))
    assert size == result.stat().st_size
    return median(downs), median(cats)


def _enlarge(database: Path, file: str, size: int) -> int:
    """Let the result that is stored there have this size; id of its job."""
    with closing(sqlite3.connect(database)) as connection, connection:
        found = connection.execute(
            "UPDATE jobs SET result_size = ? WHERE result_file = ? RETURNING id",
            (size, file),
        ).fetchall()
    return int(found[0][0])


def _seconds(command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, shell=True, check=True)
    return time.perf_counter() - start


def _copy(source: Path, target: Path) -> float:
    start = time.perf_counter()
    with target.open("wb") as out:
        subprocess.run(["cat", str(source)], stdout=out, check=True)
        os.fsync(out.fileno())
    return time.perf_counter() - start


def _send(server: Program, source: Path, size: int) -> float:
    """Upload as a light client does: the kernel moves the file. Seconds until the answer."""
    if not source.exists():
        source.write_bytes(os.urandom(size))
    head, _, tail = form({"run.sh": b"exit 3\n", "big": MARK}, user_id="big").partition(MARK)
    request = (
        "POST /upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(head) + size + len(tail)}\r\n"
        f"Content-Type: {HEADERS['Content-Type']}\r\n\r\n"
    ).encode()
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", server.port)) as line, source.open("rb") as file:
        line.sendall(request + head)
        line.sendfile(file, count=size)
        line.sendall(tail)
        answer = line.recv(65_536)
    took = time.perf_counter() - start
    assert b" 201 " in answer[:40], answer
    return took


async def fill(
    path: Path,
    jobs: int,
    state: str,
    *,
    service: str = "example",
    users: int = 50,
    not_before: int = 0,
) -> None:
    """Rows as the server writes them, by the million, of ``user0``, ``user1`` and so on. The folder
    of the file is the server's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    await (await Database.open(path, MIGRATIONS)).close()
    now = time.time_ns() // 1000
    ended, limits = state != "Queued", Limits().model_dump_json()
    alike = service, limits, int(ended)
    ends = (now, now + 10**12) if ended else (None, None)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.executemany(
            """
            INSERT INTO jobs (state, user_id, service, limits, timeout_s, attempt, message,
                              bundle_file, bundle_size, bundle_digest, created_at, queued_at,
                              ended_at, expires_at, not_before)
            VALUES (?, ?, ?, ?, 60, ?, 'x', ?, 1, 'd', ?, ?, ?, ?, ?)
            """,
            (
                (state, f"user{n % users}", *alike, f"{n:032x}", now, now, *ends, not_before)
                for n in range(jobs)
            ),
        )
        database.execute(
            "INSERT INTO bundles (file, digest, size, refs, created_at, shared)"
            " SELECT bundle_file, 'd', 1, 1, created_at, 0 FROM jobs"
        )
        database.execute(
            """
            INSERT INTO events (job_id, at, attempt, before, state, message)
            SELECT id, created_at, attempt, NULL, state, 'x' FROM jobs
            """
        )
    # The first of the bundles: a folder without any is not the database's.
    name = f"{0:032x}"
    place = path.parent / "bundles" / name[:PREFIX_LEN] / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"x")


async def queue(folder: Path, short: int, long: int, rounds: int) -> list[Row]:
    service = Service("example", runs_per_user=1, max_runs=10)
    costs = {}
    for length in (short, long):
        path = folder / f"queue{length}.sqlite"
        await fill(path, length, "Queued")
        database = await Database.open(path, MIGRATIONS)
        jobs = Jobs(database, lambda job: None)
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            claimed = await jobs.claim_fairly(service, [Candidate("node", None)], 10, 1)
            times.append(time.perf_counter() - begin)
            assert len(claimed) == 10
            for job in claimed:
                await jobs.move(Move(job.id, job.attempt, job.state, JobState.QUEUED, 1, "x"))
        costs[length] = median(times)
        await database.close()
    ratio = costs[long] / costs[short]
    took, before = f"{costs[long] * 1e3:.2f} ms", f"with {short:,}: {costs[short] * 1e3:.2f} ms"
    what = f"dispatch of 10 with {long:,} queued"
    return [Row(what, took, before, ratio, "≤ 1.5", ratio <= 1.5)]


async def claims(folder: Path, rounds: int) -> list[Row]:
    """To claim the only job that waits, where thousands of slots are free; in turns."""
    few, agents, busy = (1, 10), (50, 10), (50, 3_000)
    service = Service("example", runs_per_user=100_000, max_runs=100_000)
    stores: dict[tuple[int, int], Jobs] = {}
    databases = []
    times: dict[tuple[int, int], list[float]] = {one: [] for one in (few, agents, busy)}
    for nodes, held in times:
        path = folder / f"claims{nodes}-{held}" / "server.sqlite"
        await fill(path, held + 1, "Queued")
        with sqlite3.connect(path) as raw:
            raw.execute(
                "UPDATE jobs SET state = 'Running', attempt = 1, agent = 'node' || (id * 7 % ?) "
                "WHERE id <= ?",
                (nodes, held),
            )
        databases.append(await Database.open(path, MIGRATIONS))
        stores[nodes, held] = Jobs(databases[-1], lambda job: None)
    for _ in range(rounds):
        for (nodes, held), jobs in stores.items():
            candidates = [Candidate(f"node{n}", 10_000 // nodes) for n in range(nodes)]
            begin = time.perf_counter()
            (job,) = await jobs.claim_fairly(service, candidates, 100, 1)
            times[nodes, held].append(time.perf_counter() - begin)
            await jobs.move(Move(job.id, job.attempt, job.state, JobState.QUEUED, 1, "x"))
    for database in databases:
        await database.close()
    cost = {one: median(found) for one, found in times.items()}
    return [
        Row(
            what,
            f"{cost[many] * 1e3:.2f} ms",
            f"with {number}: {cost[less] * 1e3:.2f} ms",
            cost[many] / cost[less],
            "≤ 1.5",
            cost[many] <= 1.5 * cost[less],
        )
        for what, many, less, number in (
            ("dispatch of 1 with 50 agents", agents, few, 1),
            ("dispatch of 1 with 50 agents and 3,000 jobs that run", busy, agents, 10),
        )
    ]
