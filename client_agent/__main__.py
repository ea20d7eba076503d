"""The agent's command line: ``python -m client_agent``, also reached as ``ferryman agent``."""

from __future__ import annotations

from shared import interpreter

if __name__ == "__main__":
    interpreter.starting()

import asyncio
import dataclasses
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, NoReturn

import structlog
import typer

from client_agent import app as agent
from client_agent.check.table import show
from client_agent.sandbox.base import SandboxBroken
from client_agent.settings.agent import AgentSection, AgentSettings, load, orchestrator
from shared import logs
from shared.clock import RealClock
from shared.command_line import run_command
from shared.files.durable import FolderInUse
from shared.http.sockets import CannotListen, check_exposure, url_of
from shared.settings.base import SettingsError
from shared.settings.effective import Sources, as_documents, as_toml, effective
from shared.settings.load import file_of_host
from shared.sqlite.files import DatabaseUnavailable, NewerSchema

USAGE: Final = 2
UNAVAILABLE: Final = 69
OS_ERROR: Final = 71
CANNOT_CREATE: Final = 73
IO_ERROR: Final = 74
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

_HELP: Final = """
Run a compute agent: it takes bundles from servers and runs them in a sandbox.

Settings come from the table [agent] of --config, from FERRYMAN_AGENT__… variables and from the
options; later ones win. PORT, DB_PATH, DATA_PATH and MAX_AGE of job-orchestrator work, too.
`check` takes /etc/ferryman/agent.toml, if it is there, unless --config, --data-dir or such a
variable says otherwise.

Exit codes: 0 stopped by a signal; 2 bad settings; 69 the sandbox or the address cannot be used;
71 the operating system refuses something else, such as one more open file;
73 the data folder is in use or cannot be written; 74 the database is damaged, or of a newer
version.
"""

cli = typer.Typer(
    help=_HELP,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cli.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port to listen on; 0: a free one.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything is kept.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file.", envvar="FERRYMAN_CONFIG")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name shown on jobs.")] = None,
    slots: Annotated[
        int | None, typer.Option(metavar="N", help="Attempts that run at once.")
    ] = None,
    services: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Services offered, comma separated; default: any."),
    ] = None,
    ready_fd: Annotated[
        int | None,
        typer.Option(metavar="FD", help="Descriptor that gets the port once it listens."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="auto, text or json.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning, error.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print each setting with its source, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on stdout, with --print-config.")
    ] = False,
) -> None:
    # The uids of jobs need access to folders that are made for them, whatever the shell's mask was.
    os.umask(0o022)
    options = {"config", "ready_fd", "print_config", "as_json"}  # all others are settings
    flags = {name: value for name, value in context.params.items() if name not in options}
    if context.invoked_subcommand is not None:
        config = file_of_host(AgentSettings, "agent.toml", config, data_dir)
    try:
        settings = load(config, flags)
    except SettingsError as problem:
        _exit(USAGE, str(problem))
    context.obj = settings
    if print_config:
        sources = Sources({"agent": flags}, config, {"agent": orchestrator(os.environ)})
        values = effective(AgentSettings.model_construct(agent=settings), sources)
        shown = json.dumps(as_documents(values)) if as_json else as_toml(values).rstrip()
        print(shown)  # noqa: T201 - the result
        try:  # `ferryman check` asks this way
            check_exposure(settings.host, bool(settings.all_tokens()), "agent")
        except CannotListen as problem:
            _exit(UNAVAILABLE, str(problem))
        raise typer.Exit
    if context.invoked_subcommand is None:
        logs.configure(settings.log_format, settings.log_level, "agent")
        _run(settings, ready_fd, lambda: load(config, flags))


@cli.command()
def check(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Test the sandbox, then each limit with a program that exceeds it.

    Exit codes: 0 every limit holds as claimed; 1 one does not; 69 the sandbox cannot be used.
    """
    settings: AgentSection = context.obj
    logs.configure(settings.log_format, "warning", "agent")
    try:
        table = asyncio.run(agent.check(settings, RealClock()))
    except OSError as problem:
        _exit_for(problem, settings)
    if as_json:
        print(json.dumps(dataclasses.asdict(table), default=dict))  # noqa: T201 - the result
    else:
        show(table)
    if not table.passed:
        raise typer.Exit(UNAVAILABLE if table.report is None else 1)


def _run(settings: AgentSection, ready_fd: int | None, read: Callable[[], AgentSection]) -> None:
    log: structlog.stdlib.BoundLogger = structlog.get_logger()

    def ready(port: int) -> None:
        interpreter.ready()
        url = url_of(settings.host, port, tls=settings.tls_cert is not None)
        log.info("agent.listening", url=url, agent=settings.name)
        if ready_fd is not None:
            os.write(ready_fd, f"{port}\n".encode())
            os.close(ready_fd)

    try:
        asyncio.run(agent.serve(settings, RealClock(), ready, read))
    except (CannotListen, SandboxBroken) as problem:
        _exit(UNAVAILABLE, str(problem))
    except FolderInUse as problem:
        _exit(CANNOT_CREATE, str(problem))
    except (DatabaseUnavailable, NewerSchema) as problem:
        _exit(IO_ERROR, str(problem))
    except OSError as problem:
        _exit_for(problem, settings)


def _exit_for(problem: OSError, settings: AgentSection) -> NoReturn:
    """Another data folder helps only if the problem is in this one, or the disk is full."""
    database = settings.data_dir if settings.database is None else settings.database.parent
    path = Path(os.fsdecode(problem.filename or ""))
    own_folder = any(path.is_relative_to(folder) for folder in (settings.data_dir, database))
    if own_folder or problem.errno in _DISK_FULL:
        _exit(CANNOT_CREATE, f"{settings.data_dir}: {problem.strerror or problem}")
    _exit(OS_ERROR, f"the operating system refuses: {problem}")


def _exit(code: int, message: str) -> NoReturn:
    print(f"ferryman agent: {message}", file=sys.stderr)  # noqa: T201 - before or after logging
    raise typer.Exit(code)


def check_last(words: Sequence[str]) -> list[str]:
    """Move ``check`` behind the agent's options: Typer accepts them only before."""
    if words[:1] != ["check"] or {"-h", "--help"} & {*words}:
        return [*words]
    json_flag = [word for word in words if word == "--json"]
    return [*(word for word in words[1:] if word != "--json"), words[0], *json_flag]


if __name__ == "__main__":
    run_command(cli, "ferryman agent", check_last(sys.argv[1:]))
