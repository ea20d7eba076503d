"""How long the server takes for each page, beside many jobs that have ended."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
import zlib
from pathlib import Path
from typing import Final

import aiohttp
from structlog.testing import capture_logs

from server.web.routes import ROUTES
from tests.bench.bulk import fill
from tests.bench.table import Row, median, percentile
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

_ROUNDS: Final = 20
MOST_MS: Final = 50.0
_ASSET: Final = re.compile(r'(?:src|href)="(/assets/[^"]+)"')
_NOT_PAGES: Final = ("/assets/", "/live", "/login")


async def pages(folder: Path, few: int, many: int) -> list[Row]:
    """Every page that needs no file of a job, with filters of the list that find little."""
    found: dict[int, dict[str, float]] = {}
    weight: dict[str, int] = {}
    for count in (few, many):
        at = folder / f"pages{count}"
        await fill(at / "data" / "ferryman.sqlite", count, "Completed")
        with capture_logs():
            async with driving(at, FakeOrchestrator(), auth="none") as client:
                found[count], weight = await _measured(client, count)
    slowest = sorted(found[many], key=lambda page: -found[many][page])
    rows = [
        Row(
            f"the page {page} with {many:,} jobs, client included",
            f"{found[many][page] * 1e3:.1f} ms",
            f"with {few:,}: {found[few][page] * 1e3:.1f} ms",
            found[many][page] / found[few][page],
            f"≤ {MOST_MS:.0f} ms",
            found[many][page] * 1e3 <= MOST_MS,
        )
        for page in slowest
    ]
    heaviest = max(weight, key=lambda page: weight[page])
    rows.append(
        Row(
            f"the heaviest page with its styles and scripts, compressed: {heaviest}",
            f"{weight[heaviest] / 1000:.0f} KB",
            f"median {median(list(weight.values())) / 1000:.0f} KB",
            None,
            "< 100 KB",
            weight[heaviest] < 100_000,
        )
    )
    return rows


async def _measured(client: ServerClient, jobs: int) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds (p95) and bytes of each page."""
    times, weight = dict[str, float](), dict[str, int]()
    sizes = dict[str, int]()
    async with aiohttp.ClientSession(
        headers={"Accept": "text/html,application/xhtml+xml", "Accept-Encoding": "gzip"},
        auto_decompress=False,
    ) as session:

        async def get(path: str) -> tuple[int, bytes]:
            async with session.get(client.url + path, allow_redirects=False) as answer:
                return answer.status, await answer.read()

        for page, path in _paths(jobs).items():
            taken = []
            status, body = await get(path)
            if status != 200:
                continue  # it needs a file, or something that there is none of
            for _ in range(_ROUNDS):
                begin = time.perf_counter()
                await get(path)
                taken.append(time.perf_counter() - begin)
            times[page] = percentile(taken, 0.95)
            text = await asyncio.to_thread(_text, body)
            for asset in set(_ASSET.findall(text)) - sizes.keys():
                sizes[asset] = len((await get(asset))[1])
            weight[page] = len(body) + sum(sizes[one] for one in set(_ASSET.findall(text)))
    return times, weight


def _text(body: bytes) -> str:
    return (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else zlib.decompress(body)).decode()


def _paths(jobs: int) -> dict[str, str]:
    """What a page is called -> where it is."""
    found = {}
    for route in ROUTES:
        if route.method == "GET" and not route.path.startswith(_NOT_PAGES):
            path = route.path.replace("{id}", str(jobs)).replace("{name}", "my_service")
            if "{" not in path:
                found[route.path] = path
    chosen = ("state=Failed", "user=user7&state=Completed", "tag=nothing", "text=nothing")
    found |= {f"/jobs?{one}": f"/jobs?{one}" for one in chosen}
    return found | {"/jobs?cursor=": f"/jobs?cursor={jobs // 2}"}
