"""Commands that start programs: the server, the agent, and both together."""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ferryman.cli.exits import UNAVAILABLE
from ferryman.cli.options import whole
from ferryman.cli.show import print_error


def server(context: typer.Context) -> NoReturn:
    """Run the server alone; see `ferryman server --help`."""
    run_program("server", context.args)


def agent(context: typer.Context) -> NoReturn:
    """Run an agent alone; see `ferryman agent --help`."""
    run_program("client_agent", context.args)


def backup(context: typer.Context) -> NoReturn:
    """Copy what a server keeps, while it runs."""
    run_program("server.maintenance", ["backup", *context.args])


def restore(context: typer.Context) -> NoReturn:
    """Restore a backup into an empty folder."""
    run_program("server.maintenance", ["restore", *context.args])


def dev(
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Where the server listens.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", parser=whole(0, 65535), metavar="PORT", help="The server's; 0: a free one."
        ),
    ] = 5000,
    agent_port: Annotated[
        int,
        typer.Option(
            "--agent-port", parser=whole(0, 65535), metavar="PORT", help="The agent's; 0: free."
        ),
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
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the dashboard in the browser.")
    ] = False,
) -> None:
    """Run server and agent on this machine, to try them."""
    require_server_extra()
    import asyncio

    from ferryman import dev as both

    try:
        known = both.known_agent(config, agent_port)
    except ValueError as problem:
        raise typer.BadParameter(f"{config}: {problem}") from None
    plan = both.Plan(
        host=host,
        port=port,
        agent_port=known or agent_port,
        agent_is_known=known is not None,
        data_dir=data_dir if data_dir is not None else both.default_data_dir(os.environ),
        config=config,
        open_dashboard=not no_open and sys.stdout.isatty(),
    )
    code = asyncio.run(both.run(plan))
    if code:
        raise typer.Exit(code)


def run_program(module: str, arguments: list[str]) -> NoReturn:
    """Replace this process by the program, so that signals reach it and its exit code is ours.

    It is started, not imported: the client must not depend on the two others.
    """
    require_server_extra()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(  # noqa: S606 - no shell is wanted
        sys.executable, [sys.executable, "-P", "-m", module, *arguments]
    )


def require_server_extra() -> None:
    """Where only the client is installed, say what is missing, without a traceback."""
    if sys.platform != "linux":
        print_error("server and agent run on Linux only")
        raise typer.Exit(UNAVAILABLE)
    missing = missing_packages()
    if missing:
        print_error(
            f"server and agent need more than the client ({', '.join(missing)}): "
            "pip install 'ferryman[server]'"
        )
        raise typer.Exit(UNAVAILABLE)


def missing_packages() -> list[str]:
    """Distributions of the extra ``server`` that are not there."""
    try:
        wanted = metadata.requires("ferryman") or []
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return []
    missing = []
    for requirement in wanted:
        match = re.fullmatch(r"([A-Za-z0-9._-]+).*;\s*extra == .server.", requirement)
        if match is not None:
            try:
                metadata.distribution(match[1])
            except metadata.PackageNotFoundError:
                missing.append(match[1])
    return missing
