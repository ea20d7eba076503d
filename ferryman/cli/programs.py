"""Commands that start programs: the server, the agent, and both together."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ferryman import dev as both


def server(context: typer.Context) -> NoReturn:
    """Run the server alone: `ferryman server --help` shows its options."""
    _become("server", context.args)


def agent(context: typer.Context) -> NoReturn:
    """Run an agent alone, on a compute host; `ferryman agent check` tests its sandbox."""
    _become("client_agent", context.args)


def backup(context: typer.Context) -> NoReturn:
    """Copy what a server keeps, while it runs: `ferryman backup --help` shows its options."""
    _become("server.maintenance", ["backup", *context.args])


def restore(context: typer.Context) -> NoReturn:
    """Restore a backup into an empty folder: `ferryman restore --help` shows its options."""
    _become("server.maintenance", ["restore", *context.args])


def dev(
    host: Annotated[str, typer.Option("--host", help="Where the server listens.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The server's; 0: a free one.")
    ] = 5000,
    agent_port: Annotated[
        int, typer.Option("--agent-port", min=0, max=65535, help="The agent's; 0: a free one.")
    ] = 9000,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Where jobs are kept; default: ferryman/dev in your XDG data folder.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings (TOML); default: one service, example."
        ),
    ] = None,
) -> None:
    """Run a server and an agent on this machine, to try things out."""
    plan = both.Plan(
        host=host,
        port=port,
        agent_port=agent_port,
        data_dir=data_dir if data_dir is not None else both.default_data_dir(os.environ),
        config=config,
    )
    code = asyncio.run(both.run(plan))
    if code:
        raise typer.Exit(code)


def _become(module: str, arguments: list[str]) -> NoReturn:
    """Replace this process: signals and the exit code need no go-between.

    A program of its own, not an import: the client must not depend on the two others.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(  # noqa: S606 - no shell is wanted
        sys.executable, [sys.executable, "-P", "-m", module, *arguments]
    )
