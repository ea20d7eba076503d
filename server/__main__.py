"""``python -P -m server``, which is what ``ferryman server`` runs."""

from __future__ import annotations

from shared import interpreter

if __name__ == "__main__":
    interpreter.starting()

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from server.app import serve
from server.settings.load import agent_at, orchestrator, read
from server.settings.tables import ServerSettings
from server.store.data_folder import WrongDatabase
from shared import logs
from shared.command_line import CANNOT_CREATE, DAMAGED, UNAVAILABLE, USAGE, run_command
from shared.files.durable import FolderInUse
from shared.http.sockets import CannotListen
from shared.settings.base import SettingsError
from shared.settings.effective import Sources, as_documents, as_toml, effective
from shared.sqlite.files import DatabaseUnavailable, NewerSchema

program = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@program.command()
def main(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file.", envvar="FERRYMAN_CONFIG")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address to listen on [127.0.0.1].")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port [5000]; 0: a free one.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of all data [./data].")
    ] = None,
    agent_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The one agent, instead of those in the file.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="auto, text or json.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    ready_fd: Annotated[
        int | None,
        typer.Option(metavar="FD", help="Descriptor to write the port to once listening."),
    ] = None,
    new_database: Annotated[
        bool,
        typer.Option(
            "--new-database",
            help="Start with a database that is new or not that of the data folder, as another "
            "server; files that it does not know are moved aside.",
        ),
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print each setting with its source, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on stdout, with --print-config.")
    ] = False,
) -> None:
    """Run the server: takes uploads, queues them, pushes them to agents, serves results.

    Settings come from the TOML file, then FERRYMAN_… variables (and job-orchestrator's own), then
    these options.

    Exit codes: 0 stopped by a signal; 2 bad settings; 69 cannot listen; 73 data folder in use or
    not writable; 74 database unusable, of a newer version, or not that of the data folder.
    """
    os.umask(0o077)  # everything that is stored belongs to some user
    flags = {
        "server": {
            "host": host,
            "port": port,
            "data_dir": data_dir,
            "log_format": log_format,
            "log_level": log_level,
        }
    }

    def load() -> ServerSettings:
        settings = read(config, flags)
        if agent_url is not None:
            local = agent_at(agent_url)
            settings = settings.model_copy(update={"agents": {"local": local}})
        return settings

    try:
        settings = load()
        if print_config:
            local = {} if agent_url is None else {"agents": {"local": {"url": agent_url}}}
            sources = Sources(flags | local, config, orchestrator(os.environ))
            values = effective(settings, sources)
            shown = json.dumps(as_documents(values)) if as_json else as_toml(values).rstrip()
            print(shown)  # noqa: T201 - the result
            return
        logs.configure(settings.server.log_format, settings.server.log_level, "server")
        asyncio.run(serve(settings, load, ready_fd, new_database=new_database))
    except SettingsError as problem:
        _end(USAGE, str(problem))
    except CannotListen as problem:
        _end(UNAVAILABLE, str(problem))
    except FolderInUse as problem:
        _end(CANNOT_CREATE, str(problem))
    except (DatabaseUnavailable, NewerSchema, WrongDatabase) as problem:
        _end(DAMAGED, str(problem))
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        _end(CANNOT_CREATE, f"{where}{problem.strerror}")


def _end(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"ferryman server: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    run_command(program, "ferryman server", sys.argv[1:])
