"""What a start costs on a host that has hundreds of mounts, as hosts of snaps and containers do.

``python -m tests.bench.many_mounts MOUNTS STARTS FOLDER`` measures one host: it adds the mounts to
its own mount namespace, so it must be started in a new one.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from client_agent.sandbox.kernel import mounts
from tests.bench import bare
from tests.bench.table import Row, median

MORE = 300
CPU, GATE = "CPU of the chain", "up to the gate"


async def many_mounts(folder: Path, count: int, rounds: int) -> list[Row]:
    """Our whole cycle with and without more mounts, in turns. Nothing where we may not mount."""
    if os.geteuid() != 0:
        return []
    found: dict[int, list[dict[str, float]]] = {0: [], MORE: []}
    for number in range(rounds):
        for more in (0, MORE) if number % 2 else (MORE, 0):
            found[more].append(await asyncio.to_thread(_apart, folder, more, count))
    return [_row(part, found) for part in (CPU, GATE)]


def _row(part: str, found: dict[int, list[dict[str, float]]]) -> Row:
    few, many = ([one[part] for one in found[more]] for more in (0, MORE))
    ratio = median([one / other for one, other in zip(many, few, strict=True)])
    what, without = f"a start beside {MORE} more mounts: {part}", f"without {median(few):.1f} ms"
    return Row(what, f"{median(many):.1f} ms", without, ratio, "", None)


def _apart(folder: Path, more: int, count: int) -> dict[str, float]:
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-P"]
    words = ["-m", "tests.bench.many_mounts", str(more), str(count), str(folder)]
    done = subprocess.run([*command, *words], stdout=subprocess.PIPE, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


async def _measure(more: int, count: int, folder: Path) -> None:
    home = Path(tempfile.mkdtemp(dir=folder))
    for number in range(more):
        place = home / "mounts" / str(number)
        place.mkdir(parents=True)
        mounts.mount(str(place), place, flags=mounts.BIND)
    parts: dict[str, list[float]] = {}
    async with bare.sandbox(home / "agent") as found:
        for number in range(4):  # makes its disk images
            await bare.spawn(found, home, f"first{number}", 0)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for number in range(count):
            await bare.spawn(found, home, f"next{number}", 0, parts=parts)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    gate_s = median(parts["start up to the gate"])
    print(json.dumps({CPU: cpu_s / count * 1e3, GATE: gate_s * 1e3}))


if __name__ == "__main__":
    asyncio.run(_measure(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
