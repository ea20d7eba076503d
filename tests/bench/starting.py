"""How many sandboxes start a second, and which part of a sandbox limits that."""

from __future__ import annotations

import asyncio
import random
import resource
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from client_agent.sandbox.base import SandboxSettings
from client_agent.sandbox.bubblewrap import command, root_tree
from tests.bench import bare
from tests.bench.chain import Chain, Change, Options, chained, unchanged
from tests.bench.table import Row, median

AT_ONCE = (1, 2, 4, 8)
ALL = "bwrap, all our options"

Rates = dict[int, list[tuple[float, float]]]
"""At once -> (starts a second, CPU seconds of one) by round."""


def without(*flags: str, pairs: Sequence[str] = ()) -> Change:
    """Leave out flags, and options that have one value."""

    def change(given: Options) -> Options:
        kept = [option for option in given if option not in flags]
        for name in pairs:
            while name in kept:
                at = kept.index(name)
                del kept[at : at + 2]
        return kept

    return change


def no_pid(given: Options) -> Options:
    # without a pid namespace of its own nobody may mount a new proc
    kept = without("--unshare-pid")(given)
    kept[kept.index("--proc")] = "--ro-bind"
    kept.insert(kept.index("/proc"), "/proc")
    # and there is no init of its own to hide
    mount = kept.index(command.INIT_PROC) - 5
    del kept[mount : mount + 6]
    remount = kept.index(command.INIT_PROC) - 1
    del kept[remount : remount + 2]
    return kept


def fewest_mounts(given: Options) -> Options:
    """One recursive bind instead of thirty mounts: what mounts cost in all. It keeps no promise."""
    first, last = given.index("--ro-bind"), given.index("--bind-fd")
    binds = ["--ro-bind", "/", "/", "--proc", "/proc", "--tmpfs", "/mnt"]
    remounts = ("--remount-ro", command.PROC_FS, command.INIT_PROC, "/dev", "/")
    after = [option for option in given[last:] if option not in remounts]
    for _ in range(2):  # the mount and --chdir
        after[after.index(root_tree.JOB)] = "/mnt"
    return [*given[:first], *binds, *after]


NO_USER = without("--unshare-user", "--disable-userns", pairs=["--uid", "--gid"])
NO_SMALL = without("--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", pairs=["--hostname"])
NO_NET = without("--unshare-net")


def variants(chain: Chain, folder: Path, *, root: bool) -> dict[str, Callable[[], float]]:
    """What is measured beside our own sandbox. Only :data:`ALL` is fit to run anything."""
    changes: dict[str, Change] = {
        ALL: unchanged,
        "without net": NO_NET,
        "without pid, its proc": no_pid,
        "without ipc, uts, cgroup": NO_SMALL,
        "without --disable-userns": without("--disable-userns"),
        "without all but user and mount": lambda given: NO_NET(NO_SMALL(no_pid(given))),
        "with the fewest mounts": fewest_mounts,
    }
    found: dict[str, Callable[[], float]] = {
        name: partial(chain.with_options, change) for name, change in changes.items()
    }
    if root:  # as root: nobody else can do without a user namespace
        found["without user, as root"] = partial(chain.with_options, NO_USER, drop=False)
        found["the same with user"] = chain.all_options
    return found | {
        "bwrap, minimal": chain.minimal,
        "bash run.sh": chain.bash,
        "the chain": chain.whole,
    }


def rate(run: Callable[[], float], at_once: int, count: int) -> tuple[float, float]:
    """Starts a second from ``at_once`` threads, and CPU seconds of one start: ours and its own,
    not what kernel threads do afterwards."""
    numbers, lock = iter(range(count)), threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                if next(numbers, None) is None:
                    return
            run()

    start, before = time.perf_counter(), _cpu_s()
    with ThreadPoolExecutor(at_once) as threads:
        for done in [threads.submit(worker) for _ in range(at_once)]:
            done.result()
    return count / (time.perf_counter() - start), (_cpu_s() - before) / count


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


async def starts(folder: Path, count: int, rounds: int) -> list[Row]:
    """Our cycle, and plain bwrap with parts left out, at several degrees of parallelism."""
    async with AsyncExitStack() as stack:
        etc = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etc.chmod(0o711)  # jobs' uids pass through
        found = await stack.enter_async_context(bare.sandbox(folder / "bare"))
        plain = await stack.enter_async_context(
            bare.sandbox(folder / "plain", SandboxSettings(disk_images=False))
        )
        chain, workspace = await chained(plain, "chain")
        stack.push_async_callback(workspace.destroy)

        await bare.rate(found, folder, AT_ONCE[-1], 2 * AT_ONCE[-1])  # makes its disk images

        async def ours(at_once: int, count: int) -> tuple[float, float]:
            before = _cpu_s()
            return await bare.rate(found, folder, at_once, count), (_cpu_s() - before) / count

        measured: dict[str, Callable[[int, int], Awaitable[tuple[float, float]]]] = {
            "our whole cycle": ours
        }
        plains = dict(variants(chain, etc, root=plain.separate_uids))
        if plain.host.hierarchy is not None:
            plains["the chain in cgroups"] = chain.in_cgroups
        measured |= {name: _threaded(run) for name, run in plains.items()}
        rates: dict[str, Rates] = {name: {one: [] for one in AT_ONCE} for name in measured}
        for _ in range(rounds):
            for at_once in AT_ONCE:
                for name in random.sample(list(measured), len(measured)):
                    rates[name][at_once].append(await measured[name](at_once, count))
    title = f"starts a second, {_list(AT_ONCE)} at once: "
    return [_row(title, name, found_rates, rates[ALL]) for name, found_rates in rates.items()]


def _threaded(run: Callable[[], float]) -> Callable[[int, int], Awaitable[tuple[float, float]]]:
    return lambda at_once, count: asyncio.to_thread(rate, run, at_once, count)


def _row(title: str, name: str, found: Rates, base: Rates) -> Row:
    """The ratio is the median of those within a round and a degree of parallelism."""
    speeds = [median([run[0] for run in runs]) for runs in found.values()]
    cpu_s = median([run[1] for runs in found.values() for run in runs])
    ratios = [
        one[0] / other[0]
        for at_once in found
        for one, other in zip(found[at_once], base[at_once], strict=True)
    ]
    said = f"{_list(speeds)}, {cpu_s * 1e3:.1f} ms CPU each"
    return Row(title + name, said, ALL, median(ratios), "", None)


def _list(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" for value in values)
