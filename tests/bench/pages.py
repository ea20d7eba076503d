"""How long the server takes for each page, beside many jobs that have ended."""

from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from structlog.testing import capture_logs

from server.web.routes import ROUTES
from tests.bench.bulk import fill
from tests.bench.table import Row, measured, percentile
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

MOST_MS: Final = 50.0
_NOT_PAGES: Final = ("/assets/", "/live", "/login")


async def pages(folder: Path, few: int, many: int) -> list[Row]:
    """Every page that needs no file of a job, with filters of the list that find little."""
    found: dict[int, dict[str, float]] = {}
    for count in (few, many):
        at = folder / f"pages{count}"
        await fill(at / "data" / "ferryman.sqlite", count, "Completed")
        with capture_logs():
            async with driving(at, FakeOrchestrator(), auth="none") as client:
                found[count] = await _measured(client, count)
    slowest = sorted(found[many], key=lambda page: -found[many][page])
    return [
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


async def _measured(client: ServerClient, jobs: int) -> dict[str, float]:
    times = dict[str, float]()
    headers = {"Accept": "text/html,application/xhtml+xml", "Accept-Encoding": "gzip"}
    async with aiohttp.ClientSession(headers=headers, auto_decompress=False) as session:

        async def get(path: str) -> int:
            async with session.get(client.url + path, allow_redirects=False) as answer:
                await answer.read()
                return answer.status

        for page, path in _paths(jobs).items():
            if await get(path) == 200:  # else it needs a file, or something that there is none of
                taken = await measured(partial(get, path))
                times[page] = percentile(taken, 0.95)
    return times


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
