"""``ferryman dev``: a server and an agent as two processes; when one ends, the other is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import webbrowser
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

GRACE_S: Final = 30.0
"""For both to stop by themselves; the agent gives running jobs less than that."""
LOOPBACK: Final = "127.0.0.1"
_MODULES: Final = {"agent": "client_agent", "server": "server"}
_IGNORED_VARIABLES: Final = ("PORT", "DB_PATH", "DATA_PATH")
"""job-orchestrator's variables for its one program; here there are two."""
_LOCAL_ADDRESS_OF: Final = {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}  # noqa: S104 - not bound here


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    host: str
    port: int
    """0: a free one."""
    agent_port: int
    agent_is_known: bool
    """The settings have it; else it is the server's only one."""
    data_dir: Path
    config: Path | None
    open_dashboard: bool = False
    """In the browser, if there is one."""


class ProgramEnded(Exception):
    """One of the two ended without being asked to; its own message is on stderr."""

    def __init__(self, name: str, code: int) -> None:
        """Args: the return code as ``Popen`` gives it."""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"the {name} {how}; its messages are above")
        self.code = 128 - code if code < 0 else code or 1


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """``ferryman/dev`` where this user's programs keep their data."""
    home = environ.get("XDG_DATA_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "share"
    return base / "ferryman" / "dev"


def known_agent(config: Path | None, port: int) -> int | None:
    """Port of the agent of the settings that is started here; None: they have no agents.

    Args:
        port: that it has to have; 0: any.

    Raises:
        ValueError: it cannot be told which one that is.
    """
    agents: Any = {}
    with contextlib.suppress(OSError, ValueError):  # the server says what is wrong with it
        agents = tomllib.loads(config.read_text()).get("agents") if config else {}
    if not agents or not isinstance(agents, dict):
        return None
    urls = [urlsplit(str(one.get("url"))) for one in agents.values() if isinstance(one, dict)]
    ports = [one.port or 80 for one in urls if one.hostname in (LOOPBACK, "localhost")]
    here = [one for one in ports if port in (0, one)]
    if len(here) != 1:
        raise ValueError(
            f"agents {', '.join(agents)}: one of them has to be the agent that is started here, "
            f'with url = "http://{LOOPBACK}:{port or 9000}" (see --agent-port)'
        )
    return here[0]


async def run(plan: Plan, say: Callable[[str], None] = lambda line: print(line, flush=True)) -> int:  # noqa: T201
    """Run both until SIGINT or SIGTERM, or until one of them ends.

    Returns:
        Exit code: 0 when asked to stop, otherwise the code of the program that ended first.
    """
    if sys.version_info < (3, 12):
        # A watcher without threads, the default since 3.12; see parent_death_signal.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)
    children: dict[str, Process] = {}
    running = asyncio.create_task(_run_both(plan, children, say))

    def stop() -> None:
        if not running.cancel():  # the second signal: stop at once
            _signal(children, signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await running
    except asyncio.CancelledError:
        return 0
    except ProgramEnded as problem:
        print(f"ferryman dev: {problem}", file=sys.stderr, flush=True)  # noqa: T201
        return problem.code
    finally:
        await _stop(children)


async def _run_both(
    plan: Plan, children: dict[str, Process], say: Callable[[str], None]
) -> NoReturn:
    """Start both, and wait for the first to end; cancelled when asked to stop. Raises
    ProgramEnded.
    """
    config = [] if plan.config is None else ["--config", str(plan.config)]
    common = [*config, "--log-format", "auto"]
    folders = {name: plan.data_dir / name for name in ("server", "agent")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    with reserved(plan.agent_port) as agent_port:
        flags_of = {
            "agent": ["--host", LOOPBACK, "--port", str(agent_port), *common],
            "server": [
                *("--host", plan.host, "--port", str(plan.port), *common),
                *(
                    ()
                    if plan.agent_is_known
                    else ("--agent-url", f"http://{LOOPBACK}:{agent_port}")
                ),
            ],
        }
        lines = {
            name: await _start(
                children, name, _MODULES[name], [*flags, "--data-dir", str(folders[name])]
            )
            for name, flags in flags_of.items()
        }
        # Both at once: most of the time goes into imports, and here are two processors.
        _, (port, about) = await asyncio.gather(
            *(_ready(name, children[name], line) for name, line in lines.items())
        )
    host = _LOCAL_ADDRESS_OF.get(plan.host, plan.host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    dashboard, reached = str(about["dashboard"]), True
    if dashboard.startswith("/"):
        reached = not about["behind_proxy"]
        dashboard = f"{url if reached else 'at the address of your proxy, '}{dashboard}"
    for line in welcome(url, about["service"], plan.data_dir, dashboard, asks=about["asks"]):
        say(line)
    if plan.open_dashboard and reached:
        await asyncio.to_thread(open_page, dashboard)
    # This process must have one thread only: see parent_death_signal.
    await asyncio.get_running_loop().shutdown_default_executor()
    waits = {asyncio.create_task(process.wait()): name for name, process in children.items()}
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    first = done.pop()
    raise ProgramEnded(waits[first], first.result())


async def _start(
    children: dict[str, Process], name: str, module: str, arguments: list[str]
) -> asyncio.StreamReader:
    """Start a program; returns what gets its port once it listens."""
    read, write = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(*parent_death_signal(), sys.executable, "-P", "-m", module, *arguments),
            *("--ready-fd", str(write)),
            env={key: value for key, value in os.environ.items() if key not in _IGNORED_VARIABLES},
            stdin=subprocess.DEVNULL,
            pass_fds=(write,),
            # Ctrl-C at a terminal goes to this process only, which then signals the two: both would
            # take a second signal as a wish to stop at once.
            process_group=0,
        )
    finally:
        os.close(write)
    children[name] = process
    ready = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(ready), os.fdopen(read, "rb")
    )
    return ready


async def _ready(
    name: str, process: Process, ready: asyncio.StreamReader
) -> tuple[int, dict[str, Any]]:
    """The port of a program, once it listens, and what the server says of itself. Raises
    ProgramEnded.
    """
    line = await ready.readline()
    if not line:
        raise ProgramEnded(name, await process.wait())
    return int(line), json.loads(await ready.readline() or "{}")


@contextlib.contextmanager
def reserved(port: int) -> Iterator[int]:
    """The agent's port, which the server has to know before the agent listens.

    Args:
        port: 0: a free one. No other program is given it as long as it is bound here; the agent
            may bind it, too, since nobody listens yet.
    """
    if port:
        yield port
        return
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield held.getsockname()[1]


def parent_death_signal() -> list[str]:
    """Arguments before a command, by which the kernel sends it SIGTERM when this process dies.

    So a kill -9 of this process leaves nothing behind. The kernel sends the signal for every
    thread that ends, and the programs take a second signal as a wish to stop at once: so this
    process has only one thread.
    """
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "TERM", "--"]


async def _stop(children: Mapping[str, Process]) -> None:
    """Stop both; returns when both have ended."""
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


def welcome(
    url: str, service: str, data_dir: Path, dashboard: str, *, asks: bool = False
) -> list[str]:
    """What to do first.

    Args:
        asks: the server asks for tokens.
    """
    shown = ' -H "Authorization: Bearer $FERRYMAN_TOKEN"' if asks else ""
    script = 'echo "hello from job $FERRYMAN_JOB_ID" | tee hello.txt'
    return [
        f"Ferryman is ready at {url}",
        f"  jobs are kept in {data_dir}; Ctrl-C stops server and agent",
        f"  dashboard: {dashboard}",
        "Try it in another terminal"
        + (", with FERRYMAN_TOKEN set to a token of your settings:" if asks else ":"),
        f"  echo '{script}' | curl -sS{shown} -F user_id=1 -F service={service} "
        f"-F 'file=@-;filename=run.sh' {url}/upload",
        "and fetch the result under the id that it answers:",
        f"  curl -sS{shown} -o result.zip '{url}/download/1?wait=30'",
    ]


def has_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a screen for one; a browser in the terminal would take that over."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def open_page(url: str) -> bool:
    """Returns whether it is open. Blocking."""
    try:
        return has_browser() and webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False
