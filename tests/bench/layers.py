"""What each layer of a start costs, down from a bare bash: all in turn, in one run."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from client_agent.sandbox.base import SandboxSettings
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from tests.bench import bare
from tests.bench.chain import TRUE, chained
from tests.bench.table import Row, median

WARM_UP = 5
REST_S = 0.01
"""Between two starts: what the kernel still takes down of one is not the next one's cost."""

Variant = Callable[[], Awaitable[float]]
"""Runs one start; seconds."""

BASH = "bash run.sh"
CHAIN = "+ gate, limits: the chain"


async def layers(folder: Path, rounds: int) -> list[Row]:
    """One start of each kind, in another order each time, ``rounds`` times."""
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(
            bare.sandbox(folder / "plain", SandboxSettings(disk_images=False))
        )
        chain, workspace = await chained(plain, "chain")
        stack.push_async_callback(workspace.destroy)
        variants: dict[str, Variant] = {
            BASH: _plain(chain.bash),
            "bwrap, minimal": _plain(chain.minimal),
            "bwrap, all our options": _plain(chain.all_options),
            "+ another uid, OOM score": _plain(chain.with_options),
            CHAIN: _plain(chain.whole),
        }
        bases = [CHAIN]
        if plain.host.hierarchy is not None:
            count = len(set(plain.host.hierarchy.folders.values()))
            bases = [f"the chain in {count} cgroups, by cgroup.procs"]
            variants[bases[0]] = _plain(partial(chain.in_cgroups, "cgroup.procs"))
            if plain.host.hierarchy.version == 1:
                bases.append(f"the chain in {count} cgroups, by tasks as we join")
                variants[bases[1]] = _plain(chain.in_cgroups)
        sandboxes = {"our whole cycle": plain}
        if plain.separate_uids:
            images = await stack.enter_async_context(bare.sandbox(folder / "images"))
            if images.host.images is not None:
                sandboxes["our whole cycle with a disk image"] = images
        ours = {name: _Ours(found, folder, name) for name, found in sandboxes.items()}
        variants |= {name: cycle.run for name, cycle in ours.items()}
        times: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(-WARM_UP, rounds):
            if number == 0:
                for cycle in ours.values():
                    cycle.parts.clear()
            for name in random.sample(list(variants), len(variants)):
                await asyncio.sleep(REST_S)
                took = await variants[name]()
                if number >= 0:
                    times[name].append(took)
    took_s = {name: median(found) for name, found in times.items()}
    rows = [
        Row(f"start: {name}", f"{took * 1e3:.2f} ms", BASH, took / took_s[BASH], "", None)
        for name, took in took_s.items()
    ]
    for name, cycle in ours.items():
        for base in bases:
            ratio = took_s[name] / took_s[base]
            rows.append(Row(name, cycle.said(), base, ratio, "≤ 1.3", ratio <= 1.3))
    load = " / ".join(f"{one:.1f}" for one in os.getloadavg())
    return [*rows, Row("load of the machine, 1 / 5 / 15 min", load, "", None, "", None)]


def _plain(run: Callable[..., float]) -> Variant:
    async def variant() -> float:
        return run()

    return variant


class _Ours:
    """A start by the agent's own sandbox, and where its time goes."""

    def __init__(self, found: Bubblewrap, logs: Path, name: str) -> None:
        self._found, self._logs, self._name = found, logs, name.replace(" ", "-")
        self._serial = 0
        self.parts: dict[str, list[float]] = {}

    async def run(self) -> float:
        self._serial += 1
        name = f"{self._name}-{self._serial}"
        return await bare.spawn(self._found, self._logs, name, 0, TRUE, self.parts)

    def said(self) -> str:
        parts = (f"{name} {median(took) * 1e3:.2f}" for name, took in self.parts.items())
        return ", ".join(parts) + " ms"
