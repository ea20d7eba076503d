"""Dispatching, lists and pages beside many jobs, straight from the store and from the server."""

import functools
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import aiohttp
from structlog.testing import capture_logs

from server.domain.choose import Candidate
from server.domain.jobs import Move
from server.domain.service import Service
from server.storage.folder import PREFIX_LEN
from server.store.migrations import MIGRATIONS
from server.store.pages import Filter
from server.web.routes import ROUTES
from shared.sqlite.database import Database
from shared.wire import JobState, Limits, Reason
from tests.bench.table import Row, compared, measured, median, percentile
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.store import Jobs, every


async def fill(
    path: Path, jobs: int, state: str, *, service: str = "example", not_before: int = 0
) -> None:
    """Rows as the server writes them, by the million, of ``user0`` to ``user49``. The folder of the
    file is the server's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    await (await Database.open(path, MIGRATIONS)).close()
    now = time.time_ns() // 1000
    ended, limits = state != "Queued", Limits().model_dump_json()
    alike = service, limits, int(ended)
    ends = (now, now + 10**12) if ended else (None, None)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA synchronous=OFF")
        database.executemany(
            """
            INSERT INTO jobs (state, user_id, service, limits, timeout_s, attempt, message,
                              bundle_file, bundle_size, bundle_digest, created_at, queued_at,
                              ended_at, expires_at, not_before)
            VALUES (?, ?, ?, ?, 60, ?, 'x', ?, 1, 'd', ?, ?, ?, ?, ?)
            """,
            (
                (state, f"user{n % 50}", *alike, f"{n:032x}", now, now, *ends, not_before)
                for n in range(jobs)
            ),
        )
        database.execute(
            "INSERT INTO bundles (file, digest, size, refs, shared)"
            " SELECT bundle_file, 'd', 1, 1, 0 FROM jobs"
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


@asynccontextmanager
async def _filled(path: Path, jobs: int, state: str, *more: str) -> AsyncIterator[Jobs]:
    """A store with rows, changed by these statements."""
    await fill(path, jobs, state)
    with closing(sqlite3.connect(path)) as raw, raw:
        for statement in more:
            raw.execute(statement)
    database = await Database.open(path, MIGRATIONS)
    yield Jobs(database, lambda job: None)
    await database.close()


async def _claim(jobs: Jobs, agents: int, slots: int | None, count: int, per_user: int) -> float:
    """Seconds to claim so many jobs, which then wait again."""
    service = Service("example", runs_per_user=per_user, max_runs=100_000)
    candidates = [Candidate(f"node{number}", slots) for number in range(agents)]
    begin = time.perf_counter()
    claimed = await jobs.claim_fairly(service, candidates, 10, 1)
    took = time.perf_counter() - begin
    assert len(claimed) == count
    for job in claimed:
        await jobs.move(Move(job.id, job.attempt, job.state, JobState.QUEUED, 1, "x"))
    return took


async def queue(folder: Path, short: int, long: int) -> list[Row]:
    costs = {}
    for length in (short, long):
        async with _filled(folder / f"{length}" / "server.sqlite", length, "Queued") as jobs:
            costs[length] = median([await _claim(jobs, 1, None, 10, 1) for _ in range(30)])
    what, few = f"dispatch of 10 with {long:,} queued", f"with {short:,}:"
    return [compared(what, costs[long], few, costs[short], times=1.5)]


async def claims(folder: Path, rounds: int) -> list[Row]:
    """To claim the only job that waits, where thousands of slots are free; in turns."""
    few, agents, busy = (1, 10), (50, 10), (50, 3_000)
    times: dict[tuple[int, int], list[float]] = {one: [] for one in (few, agents, busy)}
    async with AsyncExitStack() as stack:
        stores = {}
        for nodes, held in times:
            running = (
                "UPDATE jobs SET state = 'Running', attempt = 1, "
                f"agent = 'node' || (id * 7 % {nodes}) WHERE id <= {held}"
            )
            path = folder / f"{nodes}-{held}" / "server.sqlite"
            opened = _filled(path, held + 1, "Queued", running)
            stores[nodes, held] = await stack.enter_async_context(opened)
        for _ in range(rounds):
            for (nodes, held), jobs in stores.items():
                took = await _claim(jobs, nodes, 10_000 // nodes, 1, 100_000)
                times[nodes, held].append(took)
    cost = {one: median(found) for one, found in times.items()}
    what = "dispatch of 1 with 50 agents"
    beside = f"{what} and 3,000 jobs that run"
    return [
        compared(what, cost[agents], "with 1:", cost[few], times=1.5),
        compared(beside, cost[busy], "with 10:", cost[agents], times=1.5),
    ]


def choices(newest: int) -> list[Filter]:
    """None, each, and several at once. Jobs came up to ``newest``, one in each microsecond."""
    found = every(
        user_id=(None, "user3", "nobody"),
        service=(None, "example"),
        state=(None, JobState.COMPLETED, JobState.FAILED),
        tag=(None, "each", "rare", "none"),
    )
    further: tuple[dict[str, Any], ...] = (
        {"name": "nightly"},
        {"reason": Reason.TIMEOUT},
        {"dead_letter": True},
        {"parent_id": 1},
        {"schedule_id": 1},
        {"since": newest - 1_000},
        {"until": newest - 1_000},
        {"until": newest // 2},
        {"among": (JobState.QUEUED, JobState.FAILED, JobState.CANCELLED)},
    )
    beside: tuple[dict[str, Any], ...] = (
        {},
        {"user_id": "user3"},
        {"tag": "rare"},
        {"state": JobState.COMPLETED, "service": "example"},
        {"since": newest // 2, "user_id": "nobody"},
    )
    return [
        Filter(**one) for one in [*found, *(more | given for given in further for more in beside)]
    ]


async def lists(folder: Path, few: int, many: int) -> list[Row]:
    """The slowest first page of any choice."""
    found: dict[int, list[float]] = {}
    for length in (few, many):
        alike = "name = 'nightly', reason = 'timeout', dead_letter = 1, schedule_id = 1"
        half = f"UPDATE jobs SET {alike}, parent_id = 1 WHERE id % 2 = 0"
        statements = (
            "INSERT INTO job_tags SELECT 'each', id FROM jobs",
            "INSERT INTO job_tags SELECT 'rare', id FROM jobs WHERE id % 1000 = 0",
            "UPDATE jobs SET created_at = id",
            half,
        )
        path = folder / f"{length}" / "server.sqlite"
        async with _filled(path, length, "Completed", *statements) as jobs:
            times = [
                await measured(functools.partial(jobs.page, where, None, 50))
                for where in choices(length)
            ]
        found[length] = [median(one) for one in times]
    slow, small = max(zip(found[many], found[few], strict=True))
    what = f"a list page with {many:,} ended jobs, the slowest of {len(found[many])} choices"
    return [compared(what, slow, f"with {few:,}:", small, ms=10)]


_NOT_PAGES: Final = ("/assets/", "/live", "/login")
_CHOSEN: Final = ("state=Failed", "user=user7&state=Completed", "tag=nothing", "text=nothing")


async def pages(folder: Path, few: int, many: int) -> list[Row]:
    """Every page that needs no file of a job, with filters of the list that find little: the
    slowest; 95th percentiles, client included."""
    found: dict[int, dict[str, float]] = {few: {}, many: {}}
    headers = {"Accept": "text/html,application/xhtml+xml", "Accept-Encoding": "gzip"}
    for count, times in found.items():
        at = folder / f"pages{count}"
        await fill(at / "data" / "ferryman.sqlite", count, "Completed")
        with capture_logs():
            async with (
                driving(at, FakeOrchestrator(), auth="none") as client,
                aiohttp.ClientSession(headers=headers, auto_decompress=False) as session,
            ):

                async def get(path: str) -> int:
                    async with session.get(client.url + path, allow_redirects=False) as answer:
                        await answer.read()
                        return answer.status

                for page, path in _paths(count).items():
                    if await get(path) == 200:  # else it needs something that there is none of
                        taken = await measured(functools.partial(get, path))
                        times[page] = percentile(taken, 0.95)
    slowest = max(found[many], key=lambda page: found[many][page])
    what = f"pages with {many:,} jobs, the slowest of {len(found[many])}: {slowest}"
    return [compared(what, found[many][slowest], f"with {few:,}:", found[few][slowest], ms=50)]


def _paths(jobs: int) -> dict[str, str]:
    """What a page is called -> where it is."""
    found = {"/jobs?cursor=": f"/jobs?cursor={jobs // 2}"}
    found |= {f"/jobs?{one}": f"/jobs?{one}" for one in _CHOSEN}
    for route in ROUTES:
        if route.method == "GET" and not route.path.startswith(_NOT_PAGES):
            path = route.path.replace("{id}", str(jobs)).replace("{name}", "my_service")
            if "{" not in path:
                found[route.path] = path
    return found
