"""How long programs take to start: a command's help, its first request, a system that is ready."""

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.bench.table import Row, median
from tests.kit.dev_program import environment

FERRYMAN = "ferryman"
COMMAND = (sys.executable, "-P", "-m", FERRYMAN)
PROGRAM = Path(sys.executable).with_name(FERRYMAN)
PLAIN = "python -c pass"
IMPORTS = "python -c 'import aiohttp, pydantic'"


def ended(*command: str, env: dict[str, str]) -> float:
    """Seconds to the end of a command."""
    begin = time.perf_counter()
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def asked(*words: str, env: dict[str, str]) -> float:
    """Seconds until the first byte of a command's first request has reached a server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        begin = time.perf_counter()
        with _running([*COMMAND, *words, "--url", url], env):
            connection, _ = listening.accept()
            with connection:
                assert connection.recv(1)
                return time.perf_counter() - begin


def said(*command: str, env: dict[str, str]) -> float:
    """Seconds until ``ferryman dev`` says that it is ready, with a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with _running([*command, "--data-dir", folder], env) as process:
            assert process.stdout is not None
            assert b"ready" in process.stdout.readline()
            return time.perf_counter() - begin


@contextlib.contextmanager
def _running(command: Sequence[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def measured(folder: Path) -> dict[str, tuple[Callable[[], float], float | None]]:
    """What is measured -> how, and its target in seconds."""
    bundle = folder / "bundle"
    bundle.mkdir()
    (bundle / "run.sh").write_text("true\n")
    caches = {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "HOME": str(folder)}
    env = environment() | caches
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    end, ask = partial(ended, env=env), partial(asked, env=env)
    script = str(PROGRAM)
    bundled = (str(bundle / "run.sh"), "-s", "example", "-u", "ada")
    return {
        PLAIN: (partial(end, sys.executable, "-c", "pass"), None),
        IMPORTS: (partial(end, sys.executable, "-c", "import aiohttp, pydantic"), None),
        "ferryman --help": (partial(end, script, "--help"), 0.15),
        "ferryman submit --help": (partial(end, script, "submit", "--help"), 0.15),
        "completion of a command": (partial(end, script, "__complete", "bash", "su"), 0.15),
        "completion of an option": (partial(end, script, "__complete", "bash", "list", "--"), 0.15),
        "ferryman list, to its first request": (partial(ask, "list"), 0.25),
        "ferryman status, to its first request": (partial(ask, "status", "1"), 0.25),
        "ferryman submit, to its first request": (partial(ask, "submit", *bundled), 0.25),
        "ferryman dev, until it is ready": (
            partial(said, *COMMAND, "dev", "--port", "0", "--agent-port", "0", env=env),
            1.0,
        ),
    }


async def startup(folder: Path, rounds: int) -> list[Row]:
    """All in mixed order; the first time of each, which compiles modules, does not count."""
    found = measured(folder)
    times: dict[str, list[float]] = {name: [] for name in found}
    for at in range(1 + rounds):
        for name in random.sample(list(found), len(found)):
            took = await asyncio.to_thread(found[name][0])
            if at:
                times[name].append(took)
    plain, imports = median(times[PLAIN]), median(times[IMPORTS])
    return [
        Row(
            f"start: {name}",
            f"{median(times[name]) * 1e3:.0f} ms",
            f"{IMPORTS} {imports * 1e3:.0f} ms, {PLAIN} {plain * 1e3:.0f} ms",
            median(times[name]) / imports,
            "" if target is None else f"≤ {target * 1e3:.0f} ms",
            None if target is None else median(times[name]) <= target,
        )
        for name, (_, target) in found.items()
    ]
