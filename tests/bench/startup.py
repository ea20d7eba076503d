"""How long programs take to start: a command's help, its first request, a system that is ready."""

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from tests.bench.table import Row, compared, median
from tests.kit.dev_program import FERRYMAN, ended, environment, started


def _ended(variables: dict[str, str], *command: object) -> float:
    begin = time.perf_counter()
    ended(*command, env=environment() | variables)
    return time.perf_counter() - begin


def _asked(variables: dict[str, str], *words: str) -> float:
    """Seconds until the first byte of a command's first request has reached a server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [*FERRYMAN, *words, "--url", f"http://127.0.0.1:{listening.getsockname()[1]}"]
        begin = time.perf_counter()
        with subprocess.Popen(command, env=environment() | variables) as process:
            connection, _ = listening.accept()
            with connection:
                assert connection.recv(1)
                took = time.perf_counter() - begin
                process.kill()
        return took


def _ready(variables: dict[str, str], folder: Path) -> float:
    """Seconds until ``ferryman dev`` says that it is ready, with a new folder."""
    begin = time.perf_counter()
    with started(folder, **variables):  # type: ignore[arg-type]
        return time.perf_counter() - begin


async def startup(folder: Path, rounds: int) -> list[Row]:
    """All in mixed order; the first time of each, which compiles modules, does not count."""
    numbers, program = count(), Path(sys.executable).with_name("ferryman")
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    imports = "python -c 'import typer, pydantic, aiohttp'"
    measures: dict[str, Callable[[], float]] = {
        imports: lambda: _ended(compiled, sys.executable, "-c", "import typer, pydantic, aiohttp"),
        "ferryman --help": lambda: _ended(compiled, program, "--help"),
        "ferryman status, to its first request": lambda: _asked(compiled, "status", "1"),
        "ferryman dev, until it is ready": lambda: _ready(compiled, folder / str(next(numbers))),
    }
    times: dict[str, list[float]] = {name: [] for name in measures}
    for at in range(1 + rounds):
        for name in random.sample(list(measures), len(measures)):
            took = await asyncio.to_thread(measures[name])
            if at:
                times[name].append(took)
    base = median(times.pop(imports))
    targets = ({"ms": 150.0}, {"times": 1.0}, {"ms": 1_000.0})
    return [
        compared(f"start: {name}", median(took), imports, base, **target)
        for (name, took), target in zip(times.items(), targets, strict=True)
    ]
