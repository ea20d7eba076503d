"""``python -P -m server.maintenance``: what ``ferryman backup``, ``restore`` and ``admin`` run."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from server.data_folder import look
from server.exposure import check_start
from server.maintenance import admin
from server.maintenance.backup import Manifest, back_up
from server.maintenance.common import (
    FAILED,
    AsJson,
    Config,
    DataDir,
    Verify,
    paths_of,
    problems,
    server_paths,
    server_settings,
    settings_file,
)
from server.maintenance.doctor import examine
from server.maintenance.restore import restore
from server.settings.load import read
from server.settings.meaning import sentences, warnings
from shared.clock import RealClock
from shared.command_line import run_command
from shared.findings import show
from shared.http.sockets import url_of
from shared.units.sizes import say_count, say_size

program = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
program.add_typer(admin.app, name="admin")


@program.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", hidden=True)],
    config: Config = None,
    data_dir: DataDir = None,
    verify: Verify = False,
    as_json: AsJson = False,
) -> None:
    """Copy what a server keeps into the new folder TARGET; the server may run.

    Exit codes: 0; 1 made, but the server itself lacks files; 2 settings; 73 the folder exists or
    cannot be written; 74 the database cannot be used.
    """
    with problems():
        folder, database = server_paths(config, data_dir)
        version = metadata.version("ferryman")
        made = back_up(folder, database, target, RealClock(), version, digests=verify)
    if as_json:
        print(json.dumps(asdict(made)))  # noqa: T201 - the result
    else:
        print(f"{target}: {_told(made)}")  # noqa: T201 - the result
    for line in made.incomplete:
        sys.stderr.write(f"ferryman: {line}\n")
    if made.incomplete:
        raise typer.Exit(FAILED)


@program.command("restore")
def restore_backup(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", hidden=True)],
    config: Config = None,
    data_dir: DataDir = None,
    rehearsal: Annotated[
        bool,
        typer.Option(
            "--rehearsal",
            help="For a test while the first server runs: leave its jobs on the agents alone.",
        ),
    ] = False,
    skip_ids: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Job numbers to skip [1,000,000, and 10 for each second since the backup].",
        ),
    ] = None,
    verify: Verify = False,
    as_json: AsJson = False,
) -> None:
    """Restore what `ferryman backup` made into an empty data folder, as that of a new server.

    Exit codes: 0; 2 settings; 73 the folder holds something, is in use or cannot be written;
    74 the backup is damaged, or of a newer version.
    """
    with problems():
        folder, database = server_paths(config, data_dir)
        done = restore(
            backup,
            folder,
            database,
            RealClock(),
            rehearsal=rehearsal,
            skip=skip_ids,
            digests=verify,
        )
    if as_json:
        facts = {"data_dir": str(folder), "jobs": done.jobs, "next_id": done.first_id}
        print(json.dumps(facts | {"tokens": [token for token, _ in done.tokens]}))  # noqa: T201 - the result
    else:
        print(f"{folder}: {say_count(done.jobs, 'job')}; the next one has number {done.first_id}")  # noqa: T201 - the result
    if not (rehearsal or as_json):
        sys.stderr.write(
            "ferryman: when the server starts, agents end what they still hold for the former one, "
            "which must not run any more\n"
        )
        if done.tokens:
            sys.stderr.write(
                "ferryman: these tokens are good, also if they were revoked after the backup:\n"
            )
        for token, name in done.tokens:
            sys.stderr.write(f"  {name}: ferryman tokens revoke {token}\n")


@program.command()
def doctor(config: Config = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Look at a server's host: its folder, database, port, limits, certificates, and its agents.

    The server may run. Exit codes: 0 without a problem, otherwise that of the first one: 2 settings
    or a file of them, 69 an agent or the port, 73 the folder, 74 the database, 75 the disk is full,
    77 a token or a certificate.
    """
    with problems():
        file, settings = settings_file(config, data_dir), server_settings(config, data_dir)
        code = show(examine(settings, file, RealClock()), as_json=as_json)
    raise typer.Exit(code)


@program.command("settings", hidden=True)
def show_settings(config: Config = None) -> None:
    """What the settings amount to, in JSON, for `ferryman config check`."""
    config = settings_file(config)
    with problems():
        settings = read(config, {})
    table = settings.server
    facts: dict[str, Any] = {
        "url": url_of(table.host, table.port, tls=table.tls_cert is not None),
        "data_dir": str(table.data_dir),
        "services": sorted(settings.services),
        "agents": sorted(settings.agents),
        "warnings": warnings(settings, config),
    }
    print(json.dumps(facts))  # noqa: T201 - the result


@program.command()
def check(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", hidden=True, show_default=False)
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say what a settings file (TOML) means, and the variables that win over it. Nothing starts.

    FILE is the same as --config FILE; default: that of this host's server. Warnings name what can
    be used and is probably not meant.

    Exit codes: 0; 2 wrong settings.
    """
    source = context.get_parameter_source("config")
    if file is not None and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("the file is given twice: FILE or --config FILE")
    config = settings_file(file or config)
    with problems():
        settings = read(config, {})
        check_start(settings.server)
    said, doubts = sentences(settings), warnings(settings, config)
    with suppress(sqlite3.Error, OSError):  # the doctor says what is wrong with them
        if (wrong := look(*paths_of(settings))) is not None:
            doubts.append(str(wrong))
    if as_json:
        print(json.dumps({"meaning": said, "warnings": doubts}))  # noqa: T201 - the result
        return
    for line in said:
        print(line)  # noqa: T201 - the result
    for line in doubts:
        print(f"warning: {line}")  # noqa: T201 - the result


def _told(made: Manifest) -> str:
    total = made.bundle_bytes + made.result_bytes + made.database_bytes
    return (
        f"{say_count(made.jobs, 'job')}, "
        f"{say_count(made.bundles, 'bundle')} ({say_size(made.bundle_bytes)}), "
        f"{say_count(made.results, 'result')} ({say_size(made.result_bytes)}), "
        f"database {say_size(made.database_bytes)}; {say_size(total)} in all"
    )


if __name__ == "__main__":
    of_server = sys.argv[1:2] in (["doctor"], ["check"])  # the others are commands of `ferryman`
    run_command(program, "ferryman server" if of_server else "ferryman", sys.argv[1:])
