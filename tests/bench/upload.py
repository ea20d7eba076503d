"""Large uploads and downloads, beside ``cat`` of the same bytes."""

import os
import shutil
import socket
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import aiohttp

from tests.bench.jobs import HEADERS, memory_mib, one, running
from tests.bench.table import Row, median
from tests.kit.programs import Program, form

MIB = 1 << 20
MARK = b"(here)"


async def upload(folder: Path, size: int, rounds: int) -> list[Row]:
    """Stream one file from a plain socket, beside ``cat`` and fsync; and download it."""
    size = min(size, (shutil.disk_usage(folder).free - (10 << 30)) // 6)
    source, copy = folder / "source", folder / "copy"
    with source.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(4096) * 256)
    ours, copies = list[float](), list[float]()
    with running(folder / "run") as (server, _):
        _send(server, source, MIB)
        before = memory_mib(server, "VmHWM")
        for _ in range(rounds):
            copies.append(_seconds(f"cat {source} > {copy} && sync {copy}"))
            copy.unlink()
            ours.append(_send(server, source, size))
            shutil.rmtree(server.data / "bundles")
            (server.data / "bundles").mkdir()
        growth = memory_mib(server, "VmHWM") - before
        job_id, result = await _large_result(server, source, size)
        piped, got = f"cat {result} | cat > /dev/null", f"{server.url}/download/{job_id}"
        cats = [_seconds(piped) for _ in range(rounds)]
        downs = [_seconds(f"curl -sf {got} | wc -c | grep -qx {size}") for _ in range(rounds)]
    rate, base, down, cat = (size / median(one) / 1e6 for one in (ours, copies, downs, cats))
    what, grown = f"upload of {size / 1e9:.1f} GB", f"+{growth:.0f} MiB"
    against = f"cat + fsync {base:.0f} MB/s"
    piped = f"cat to a pipe that is read {cat:.0f} MB/s"
    return [
        Row(what, f"{rate:.0f} MB/s", against, rate / base, "≥ 0.50", rate / base >= 0.5),
        Row(f"{what}: memory of the server", grown, "", None, "≤ 64 MiB", growth <= 64),
        Row(f"download of {size / 1e9:.1f} GB", f"{down:.0f} MB/s", piped, down / cat),
    ]


async def _large_result(server: Program, source: Path, size: int) -> tuple[int, Path]:
    """A job whose result is as large as this file; where that is."""
    async with aiohttp.ClientSession(server.url) as session:
        await one(session)
    server.kill()
    with closing(sqlite3.connect(server.data / "ferryman.sqlite")) as database, database:
        last = "SELECT id, result_file FROM jobs WHERE result_size > 0 ORDER BY id DESC LIMIT 1"
        job_id, name = database.execute(last).fetchone()
        database.execute("UPDATE jobs SET result_size = ? WHERE id = ?", (size, job_id))
    (result,) = (server.data / "results").rglob(name)
    shutil.copyfile(source, result)
    server.start()
    return job_id, result


def _seconds(command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, shell=True, check=True)
    return time.perf_counter() - start


def _send(server: Program, source: Path, size: int) -> float:
    """Upload as a light client does: the kernel moves the file. Seconds until the answer."""
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
