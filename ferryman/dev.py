"""``ferryman dev``: a server and an agent as two processes that live and die together."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class Child:
    """One of the two programs."""

    name: str
    process: subprocess.Popen[bytes]
    end: asyncio.Future[int]
    """The return code, as ``Popen`` tells it."""
    ready: asyncio.StreamReader
    """Gets the port on one line when the program listens, and ends when it has ended."""


class Ended(Exception):
    """One of the two has ended though nobody asked it to; its own words are on stderr."""

    def __init__(self, name: str, code: int) -> None:
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
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    children: list[Child] = []

    def asked() -> None:
        if stop.is_set():  # asked twice: now
            _signal(children, signal.SIGKILL)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        async with _ending(children):
            await _start_both(plan, children, stop, say)
            await _first_to_end(children, stop)
    except Ended as problem:
        print(f"ferryman dev: {problem}", file=sys.stderr, flush=True)  # noqa: T201
        return problem.code
    return 0


async def _start_both(
    plan: Plan, children: list[Child], stop: asyncio.Event, say: Callable[[str], None]
) -> None:
    config = [] if plan.config is None else ["--config", str(plan.config)]
    common = [*config, "--log-format", "auto"]
    folders = {name: plan.data_dir / name for name in ("server", "agent")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    flags = ["--host", LOOPBACK, "--port", str(plan.agent_port)]
    agent = await _start(
        "agent", "client_agent", [*flags, "--data-dir", str(folders["agent"]), *common]
    )
    children.append(agent)
    agent_port = await _port(agent, stop)
    if agent_port is None:
        return
    flags = ["--host", plan.host, "--port", str(plan.port)]
    agent_url = f"http://{LOOPBACK}:{agent_port}"
    server = await _start(
        "server",
        "server",
        [*flags, "--data-dir", str(folders["server"]), "--agent-url", agent_url, *common],
    )
    children.append(server)
    port = await _port(server, stop)
    if port is None:
        return
    host = _ANYWHERE.get(plan.host, plan.host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    lines = _welcome(url, await _a_service(url), plan.data_dir)
    await asyncio.get_running_loop().shutdown_default_executor()  # no threads: see _end_of
    for line in lines:
        say(line)


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


async def _start(name: str, module: str, arguments: list[str]) -> Child:
    read, write = os.pipe()
    try:
        process = _spawn(module, [*arguments, "--ready-fd", str(write)], write)
    finally:
        os.close(write)
    ready = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(ready), os.fdopen(read, "rb")
    )
    return Child(name, process, _end_of(process), ready)


def _spawn(module: str, arguments: list[str], ready_fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*dies_with_us(), sys.executable, "-P", "-m", module, *arguments],
        env={key: value for key, value in os.environ.items() if key not in _ONE_PROGRAMS},
        stdin=subprocess.DEVNULL,
        pass_fds=(ready_fd,),
        # Ctrl-C at a terminal goes to us alone: for the two it would count as asked twice.
        process_group=0,
    )


def _end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Without asyncio's own subprocesses, which have a thread each: the kernel sends the signal of
    :func:`dies_with_us` again for every thread that dies, and asked twice means at once.
    """
    loop = asyncio.get_running_loop()
    end = loop.create_future()
    fd = os.pidfd_open(process.pid)

    def ended() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        end.set_result(process.wait())

    loop.add_reader(fd, ended)
    return end


def dies_with_us() -> list[str]:
    """A kill -9 of this process must leave nothing behind: the kernel then ends both gently."""
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "TERM", "--"]


async def _port(child: Child, stop: asyncio.Event) -> int | None:
    """Where the child listens; None: asked to stop meanwhile.

    Raises:
        Ended
    """
    reading = asyncio.ensure_future(child.ready.readline())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return None
        line = await reading
    finally:
        reading.cancel()
        stopping.cancel()
    if not line:
        raise Ended(child.name, await child.end)
    return int(line)


async def _first_to_end(children: list[Child], stop: asyncio.Event) -> None:
    """Return when asked to stop.

    Raises:
        Ended
    """
    stopping = asyncio.ensure_future(stop.wait())
    try:
        ends: list[asyncio.Future[Any]] = [child.end for child in children]
        await asyncio.wait([*ends, stopping], return_when=asyncio.FIRST_COMPLETED)
        for child in children:
            if child.end.done() and not stop.is_set():
                raise Ended(child.name, child.end.result())
    finally:
        stopping.cancel()


@asynccontextmanager
async def _ending(children: list[Child]) -> AsyncIterator[None]:
    """Whatever happens inside, afterwards both have ended."""
    try:
        yield
    finally:
        _signal(children, signal.SIGTERM)
        ends = [child.end for child in children]
        if ends:
            _, late = await asyncio.wait(ends, timeout=GRACE_S)
            if late:
                _signal(children, signal.SIGKILL)
                await asyncio.wait(ends)


def _signal(children: list[Child], number: signal.Signals) -> None:
    for child in children:
        if not child.end.done():
            child.process.send_signal(number)
