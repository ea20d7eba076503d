"""``ferryman dev``: a server and an agent as two processes; when one ends, the other is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from ferryman.client import Client
from ferryman.errors import FerrymanError
from ferryman.open_page import open_page

GRACE_S: Final = 30.0
"""For both to stop by themselves; the agent gives running jobs less than that."""
LOOPBACK: Final = "127.0.0.1"
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
    """Start both, and wait for the first to end; cancelled when asked to stop.

    Raises:
        ProgramEnded
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
    host = _LOCAL_ADDRESS_OF.get(plan.host, plan.host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    token = a_token(plan.config, os.environ)
    dashboard = await _dashboard(url, token)
    service = await _first_service(url, token)
    there = behind_proxy(dashboard, url, plan.config, os.environ)
    for line in welcome(url, service, plan.data_dir, there or dashboard, asks=token is not None):
        say(line)
    if plan.open_dashboard and not there:
        await asyncio.to_thread(open_page, dashboard)
    # This process must have one thread only: see parent_death_signal.
    await asyncio.get_running_loop().shutdown_default_executor()
    waits = {asyncio.create_task(process.wait()): name for name, process in children.items()}
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    first = done.pop()
    raise ProgramEnded(waits[first], first.result())


async def _start(children: dict[str, Process], name: str, module: str, arguments: list[str]) -> int:
    """Start a program; returns its port once it listens.

    Raises:
        ProgramEnded
    """
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
    line = await ready.readline()
    if not line:
        raise ProgramEnded(name, await process.wait())
    return int(line)


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


def a_token(config: Path | None, environ: Mapping[str, str]) -> str | None:
    """One that the settings give the server; None: they give it none."""
    table = _server_table(config)
    tokens = _listed(environ.get("FERRYMAN_SERVER__TOKENS", table.get("tokens")))
    if file := environ.get("FERRYMAN_SERVER__TOKENS_FILE", table.get("tokens_file")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            tokens = tokens or Path(file).read_text().split()
    return next((str(one).strip() for one in tokens), None)


def behind_proxy(dashboard: str, url: str, config: Path | None, environ: Mapping[str, str]) -> str:
    """Where the dashboard is if the settings have it below a path, which a proxy shows and the
    server itself does not know; empty: the address is good as it is.
    """
    prefix = environ.get("FERRYMAN_SERVER__URL_PREFIX", _server_table(config).get("url_prefix"))
    prefix = str(prefix or "").rstrip("/")
    if not prefix or not dashboard.startswith(f"{url}/"):
        return ""
    path = dashboard.removeprefix(url).removeprefix(prefix)
    return f"at the address of your proxy, {prefix}{path}"


def _server_table(config: Path | None) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):  # the server says what is wrong with it
        found = tomllib.loads(config.read_text()).get("server", {}) if config else {}
        return found if isinstance(found, dict) else {}
    return {}


def _listed(value: Any) -> list[Any]:
    """As the server reads a list: one of TOML, or in a variable a JSON list or ``a,b``."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return list(json.loads(value))
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value if isinstance(value, list) else []


async def _dashboard(url: str, token: str | None) -> str:
    """Its address; where a login is needed, one that logs in once."""
    if token is None:
        return f"{url}/"
    try:
        async with Client(url, token=token, retry_for=0) as client:
            return (await client.login_link()).url
    except FerrymanError:
        return f"{url}/"


async def _first_service(url: str, token: str | None) -> str:
    """A service that the server offers; a configuration file may define other ones."""
    try:
        async with Client(url, token=token, retry_for=0) as client:
            offered = await client.services()
        return offered[0].name
    except (FerrymanError, LookupError):
        return "example"  # it needs a token, or answers otherwise
