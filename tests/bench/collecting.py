"""Packing results: speed and memory, beside Python's own zipfile, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from client_agent.collect import pack
from shared.wire import Limits
from tests.bench.table import Row, median

MIB = 1 << 20
SMALL = 1000
"""Bytes of a small file."""
PER_FOLDER = 1000


def block() -> bytes:
    """2 MiB that nothing compresses, and 2 MiB of numbers as text. Longer than deflate's window,
    so that repeating it helps nobody."""
    numbers = random.Random(3)
    text = "".join(f"{numbers.random():.6f},{numbers.gauss(0, 9):.3f}\n" for _ in range(140_000))
    return os.urandom(2 * MIB) + text.encode()[: 2 * MIB]


def make_large(folder: Path, size: int) -> int:
    """One file; its bytes."""
    folder.mkdir()
    data = block()
    with (folder / "large").open("wb") as file:
        for _ in range(size // len(data)):
            file.write(data)
    return size // len(data) * len(data)


def make_small(folder: Path, count: int) -> int:
    """Many files; their bytes."""
    folder.mkdir()
    data = block()
    for number in range(count):
        below = folder / f"{number // PER_FOLDER:05d}"
        if number % PER_FOLDER == 0:
            below.mkdir()
        at = number * 3001 % (len(data) - SMALL)
        (below / f"{number:07d}.csv").write_bytes(data[at : at + SMALL])
    return count * SMALL


def pack_ours(folder: Path, dest: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    packed = pack.collect(fd, dest, Limits(results=1 << 40), {}, lambda _: b"{}")
    assert not packed.skipped, packed.skipped[:3]


def pack_zipfile(folder: Path, dest: Path) -> None:
    """Trusting and simple, no digest; on the disk at the end, as ours is."""
    with (
        dest.open("xb") as out,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
        archive.close()
        os.fsync(out.fileno())


PACKERS: dict[str, Callable[[Path, Path], None]] = {"ours": pack_ours, "zipfile": pack_zipfile}


def peak() -> int:
    """Peak resident bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def child(packer: str, folder: str, dest: str) -> None:
    """Pack once; seconds, growth of the peak and size of the ZIP to stdout."""
    before, start = peak(), time.perf_counter()
    PACKERS[packer](Path(folder), Path(dest))
    took = time.perf_counter() - start
    print(json.dumps([took, peak() - before, Path(dest).stat().st_size]))


async def _pack(packer: str, folder: Path, dest: Path) -> tuple[float, int, int]:
    command = [sys.executable, "-m", "tests.bench.collecting", packer, str(folder), str(dest)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0
    took, growth, size = json.loads(said)
    dest.unlink()
    return took, growth, size


async def collecting(folder: Path, size: int, count: int, rounds: int) -> list[Row]:
    """One large file, then many small ones; ours and zipfile in turns."""
    rows = []
    for what, make, amount in (
        (f"collect {size / 1e9:.1f} GB", make_large, size),
        (f"collect {count:,} files of {SMALL:,} bytes", make_small, count),
    ):
        tree = folder / make.__name__
        total = await asyncio.to_thread(make, tree, amount)
        found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in PACKERS}
        for _ in range(rounds):
            for name, runs in found.items():
                runs.append(await _pack(name, tree, folder / "out.zip"))
        took = {name: median([run[0] for run in runs]) for name, runs in found.items()}
        grew = {name: max(run[1] for run in runs) / MIB for name, runs in found.items()}
        small = {name: runs[0][2] / total for name, runs in found.items()}
        text = {
            name: f"{total / took[name] / 1e6:.0f} MB/s"
            + (f" ({amount / took[name]:,.0f} files/s)" if make is make_small else "")
            + f", to {small[name] * 100:.0f} %"
            for name in PACKERS
        }
        rows += [
            Row(
                what,
                text["ours"],
                f"zipfile {text['zipfile']}",
                took["zipfile"] / took["ours"],
                "",
                None,
            ),
            Row(
                f"{what}: memory",
                f"+{grew['ours']:.0f} MiB",
                f"zipfile +{grew['zipfile']:.0f} MiB",
                None,
                "≤ 64 MiB",
                grew["ours"] <= 64,
            ),
        ]
    return rows


if __name__ == "__main__":
    child(*sys.argv[1:])
