"""What a job costs beside many others. The systems that are compared run at the same time, and
their rounds take turns.
"""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.bench import jobs
from tests.bench.store import fill
from tests.bench.table import Row, measured, median

AXES: Final[dict[str, dict[str, Any]]] = {
    "queued": {"state": "Queued", "service": "nowhere"},
    "delayed": {"state": "Queued", "not_before": 1 << 60},
    "ended": {"state": "Completed"},
    "agents": {},
}
"""What there are many of, as :func:`fill` makes it; or agents."""


async def beside(axis: str, folder: Path, quick: bool) -> list[Row]:
    counts = [1, 10, 100] if axis == "agents" else [1, 1_000, 1_000_000]
    if quick:
        counts.pop()
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with ExitStack() as stack:
        systems = {}
        for count in counts:
            at = folder / str(count)
            if axis != "agents":
                await fill(at / "server" / "ferryman.sqlite", count, **AXES[axis])
                os.sync()  # else the commits of the jobs wait for it
            agents = count if axis == "agents" else 1
            systems[count] = stack.enter_context(jobs.running(at, agents))
            async with aiohttp.ClientSession(systems[count][0].url) as session:
                await jobs.many(session)
        for number in range(1 if quick else 3):
            for count, (server, *both) in sorted(systems.items(), reverse=bool(number % 2)):
                figures = await jobs.round_of(server, both)
                async with aiohttp.ClientSession(server.url) as session:
                    alone = median(await measured(partial(jobs.one, session)))
                more = {"p50": alone * 1e3, "MiB": jobs.memory_mib(server)}
                found[count].append(figures | more)
    least = jobs.medians(found[counts[0]])
    what = "jobs/s · CPU of server · agents · chain · one alone, uploaded → downloaded · memory"
    return [
        Row(
            f"{count:,} {axis}: {what}",
            "{rate:.1f}/s · {server:.1f} · {agent:.1f} · {chain:.1f} ms"
            " · {p50:.1f} ms · {MiB:.0f} MiB".format_map(now),
            f"server with {counts[0]}: {least['server']:.1f} ms",
            now["server"] / least["server"],
        )
        for count, now in ((count, jobs.medians(figures)) for count, figures in found.items())
    ]
