"""``python -m tests.bench [--quick] [SECTION …]``: one table, from one run."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tests.bench import growth, inputs, orchestrator, small, startup, store, upload
from tests.bench.table import HEAD, Row

SECTIONS: dict[str, Callable[[Path, bool], Awaitable[list[Row]]]] = {
    "latency": lambda at, quick: small.latency(at, 30 if quick else 200),
    "throughput": lambda at, quick: small.throughput(at, 3 if quick else 7),
    "array": lambda at, quick: small.array(at, 500 if quick else 10_000),
    "orchestrator": lambda at, quick: orchestrator.beside(at, 150 if quick else 400, 3),
    "startup": lambda at, quick: startup.startup(at, 5 if quick else 20),
    "upload": lambda at, quick: upload.upload(at, (512 << 20) if quick else (5 << 30), 3),
    "inputs": lambda at, quick: inputs.disk(
        at, 20 if quick else 1_000, (20 if quick else 100) << 20
    ),
    "lists": lambda at, quick: store.lists(at, 1_000, 100_000 if quick else 1_000_000),
    "pages": lambda at, quick: store.pages(at, 1_000, 100_000 if quick else 1_000_000),
    "queue": lambda at, quick: store.queue(at, 1_000, 100_000 if quick else 1_000_000),
    "claims": lambda at, quick: store.claims(at, 100 if quick else 500),
    **{axis: partial(growth.beside, axis) for axis in growth.AXES},
}


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--folder", help="where to work: the disk that is measured")
    given = parser.parse_args()
    if unknown := [name for name in given.sections if name not in SECTIONS]:
        parser.error(f"no such section: {unknown[0]}; there are {', '.join(SECTIONS)}")
    rows: list[Row] = []
    for name in given.sections or SECTIONS:
        folder = Path(tempfile.mkdtemp(prefix=f"ferryman-bench-{name}-", dir=given.folder))
        print(f"measuring {name} …", flush=True)
        try:
            found = await SECTIONS[name](folder, given.quick)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(*found, sep="\n", flush=True)
        rows += found
    print("", HEAD, *rows, sep="\n")


try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit("stopped")
