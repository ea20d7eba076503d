"""Server-sent events to many listeners: how late they hear of a change, and what that costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.bench.jobs import cpu_s
from tests.bench.table import Row, median, percentile
from tests.kit.programs import Program

ADDRESSES = 20
"""Of this machine, from which the listeners come: one address may have a part of all waits."""
SLOW = 20
"""Listeners that read nothing."""


class Heard:
    """When the listeners heard of each job.

    Args:
        count: of listeners.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.at: defaultdict[int, list[float]] = defaultdict(list)
        self._by_all: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def note(self, job: int) -> None:
        self.at[job].append(time.perf_counter())
        if len(self.at[job]) == self._count:
            self._by_all[job].set()

    async def by_all(self, job: int) -> None:
        """Return when every listener has heard of it."""
        async with asyncio.timeout(60):
            await self._by_all[job].wait()


async def listeners(folder: Path, count: int, jobs: int) -> list[Row]:
    """``count`` listeners to all events, in a server that gets ``jobs`` jobs, one after another.

    The delay is from the moment at which an upload is sent to the arrival of its event.
    """
    server = Program("server", folder, "server")
    await asyncio.to_thread(server.start)
    try:
        return await _measured(server, count, jobs)
    finally:
        server.kill()


async def _measured(server: Program, count: int, jobs: int) -> list[Row]:
    for _ in range(jobs):
        await _upload(server)  # so that the memory of uploads is not counted
    before_kib, delays = rss_kib(server), list[float]()
    async with _listening(server, count) as heard:
        was_s = cpu_s(server)
        for _ in range(jobs):
            begun = time.perf_counter()
            job = await _upload(server)
            await heard.by_all(job)
            delays += [at - begun for at in heard.at[job]]
        used_s, grown = cpu_s(server) - was_s, rss_kib(server) - before_kib
    p50, p99 = median(delays), percentile(delays, 0.99)
    mib = grown / 1024
    return [
        Row(
            f"an event to {count} listeners, p99",
            f"{p99 * 1e3:.0f} ms",
            f"p50 {p50 * 1e3:.0f} ms",
            p99 / p50,
            "≤ 1 s",
            p99 <= 1.0,
        ),
        Row(
            f"the server's memory with {count} listeners, {SLOW} of them read nothing",
            f"+{mib:.0f} MiB",
            f"{grown / count:.0f} KiB each",
            None,
            "≤ 64 MiB",
            mib <= 64,
        ),
        Row(
            "CPU of the server for an event to one listener",
            f"{used_s / (jobs * count) * 1e3:.2f} ms",
            "",
            None,
            "",
            None,
        ),
    ]


@asynccontextmanager
async def _listening(server: Program, count: int) -> AsyncIterator[Heard]:
    """Listeners that have their answer's head; and further ones that do not read."""
    heard = Heard(count)
    opened = [await _open(server, number) for number in range(count + SLOW)]
    tasks = [asyncio.create_task(_listen(reader, heard)) for reader, _ in opened[:count]]
    try:
        yield heard
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in opened:
            writer.close()


async def _open(server: Program, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = urlsplit(server.url).port
    own = (f"127.0.0.{2 + number % ADDRESSES}", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=own)
    writer.write(
        f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Accept: text/event-stream\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    return reader, writer


async def _listen(reader: asyncio.StreamReader, heard: Heard) -> None:
    while line := await reader.readline():
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if event["event"] == "job.queued":
                heard.note(event["job_id"])


async def _upload(server: Program) -> int:
    """A job that no agent takes."""
    form = aiohttp.FormData({"user_id": "ada", "service": "example", "not_before": "in 2h"})
    form.add_field("file", b"true", filename="run.sh")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/upload", data=form) as answer,
    ):
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


def rss_kib(program: Program) -> int:
    """Resident memory."""
    assert program.process is not None
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
