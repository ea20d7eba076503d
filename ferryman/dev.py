"""``ferryman dev``: a server and an agent as two processes that live and die together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ferryman.client import Client
from ferryman.errors import FerrymanError

GRACE_S: Final = 30.0
"""For both to stop by themselves; the agent gives running jobs less than that."""
LOOPBACK: Final = "127.0.0.1"
_ONE_PROGRAMS: Final = ("PORT", "DB_PATH", "DATA_PATH")
"""job-orchestrator's variables that speak of one program; here there are two."""
_ANYWHERE: Final = {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}  # noqa: S104 - not bound here


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    host: str
    port: int
    """0: a free one."""
    agent_port: int
    data_dir: Path
    config: Path | None


class Ended(Exception):
    """One of the two has ended though nobody asked it to; its own words are on stderr."""

    def __init__(self, name: str, code: int) -> None:
        """Args: the return code as ``Popen`` gives it."""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"the {name} {how}; what it said stands above")
        self.code = 128 - code if code < 0 else code or 1


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """``ferryman/dev`` where this user's programs keep their data."""
    home = environ.get("XDG_DATA_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "share"
    return base / "ferryman" / "dev"


async def run(plan: Plan, say: Callable[[str], None] = lambda line: print(line, flush=True)) -> int:  # noqa: T201
    """Run both until SIGINT or SIGTERM, or until one of them ends.

    Returns:
        Exit code: 0 when asked to stop, otherwise the code of the program that ended first.
    """
    if sys.version_info < (3, 12):
        # A watcher without threads, the default since 3.12; see dies_with_us.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)
    children: dict[str, Process] = {}
    living = asyncio.create_task(_live(plan, children, say))

    def asked() -> None:
        if not living.cancel():  # asked twice: now
            _signal(children, signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    try:
        await living
    except asyncio.CancelledError:
        return 0
    except Ended as problem:
        print(f"ferryman dev: {problem}", file=sys.stderr, flush=True)  # noqa: T201
        return problem.code
    finally:
        await _end(children)


async def _live(plan: Plan, children: dict[str, Process], say: Callable[[str], None]) -> NoReturn:
    """Start both, and wait for the first to end; cancelled when asked to stop.

    Raises:
        Ended
    """
    config = [] if plan.config is None else ["--config", str(plan.config)]
    common = [*config, "--log-format", "auto"]
    folders = {name: plan.data_dir / name for name in ("server", "agent")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    flags = ["--host", LOOPBACK, "--port", str(plan.agent_port), *common]
    agent_port = await _start(
        children, "agent", "client_agent", [*flags, "--data-dir", str(folders["agent"])]
    )
    flags = ["--host", plan.host, "--port", str(plan.port), *common]
    agent = ["--agent-url", f"http://{LOOPBACK}:{agent_port}"]
    port = await _start(
        children, "server", "server", [*flags, *agent, "--data-dir", str(folders["server"])]
    )
    host = _ANYWHERE.get(plan.host, plan.host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    lines = _welcome(url, await _a_service(url), plan.data_dir)
    await asyncio.get_running_loop().shutdown_default_executor()  # no threads: see dies_with_us
    for line in lines:
        say(line)
    waits = {asyncio.create_task(process.wait()): name for name, process in children.items()}
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    first = done.pop()
    raise Ended(waits[first], first.result())


async def _start(children: dict[str, Process], name: str, module: str, arguments: list[str]) -> int:
    """Start a program; returns its port once it listens.

    Raises:
        Ended
    """
    read, write = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(*dies_with_us(), sys.executable, "-P", "-m", module, *arguments),
            *("--ready-fd", str(write)),
            env={key: value for key, value in os.environ.items() if key not in _ONE_PROGRAMS},
            stdin=subprocess.DEVNULL,
            pass_fds=(write,),
            # Ctrl-C at a terminal goes to us alone: for the two it would count as asked twice.
            process_group=0,
        )
    finally:
        os.close(write)
    children[name] = process
    ready = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(ready), os.fdopen(read, "rb")
    )
    line = await ready.readline()
    if not line:
        raise Ended(name, await process.wait())
    return int(line)


def dies_with_us() -> list[str]:
    """A kill -9 of this process must leave nothing behind: the kernel then ends both gently.

    It sends the signal again for every thread of ours that dies, and for the two asked twice means
    at once: so this process has one thread.
    """
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "TERM", "--"]


async def _end(children: Mapping[str, Process]) -> None:
    """Afterwards both have ended."""
    _signal(children, signal.SIGTERM)
    waits = [asyncio.create_task(process.wait()) for process in children.values()]
    if waits:
        _, late = await asyncio.wait(waits, timeout=GRACE_S)
        if late:
            _signal(children, signal.SIGKILL)
            await asyncio.wait(late)


def _signal(children: Mapping[str, Process], number: signal.Signals) -> None:
    for process in children.values():
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


def _welcome(url: str, service: str, data_dir: Path) -> list[str]:
    script = 'echo "hello from job $FERRYMAN_JOB_ID" | tee hello.txt'
    return [
        f"Ferryman is ready at {url}",
        f"  jobs are kept in {data_dir}; Ctrl-C stops server and agent",
        "Try it in another terminal:",
        f"  echo '{script}' | curl -sS -F user_id=1 -F service={service} "
        f"-F 'file=@-;filename=run.sh' {url}/upload",
        "and fetch the result under the id that it answers:",
        f"  curl -sS -o result.zip '{url}/download/1?wait=30'",
    ]


async def _a_service(url: str) -> str:
    """One that the server offers; its settings may have come from a file."""
    try:
        async with Client(url, patience=0) as client:
            offered = await client.services()
        return str(offered[0]["name"])
    except (FerrymanError, LookupError):
        return "example"  # a token is asked for, or it tells its services otherwise
