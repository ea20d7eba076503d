"""``python -P -m server.maintenance``: what ``ferryman backup``, ``restore`` and ``admin`` run."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from server.maintenance.backup import BadBackup, Manifest, NotEmpty, back_up, restore
from server.maintenance.doctor import examine, warnings
from server.maintenance.verify import Verification, Verified
from server.settings.load import check_tokens, read
from server.settings.tables import ServerSettings
from server.store.data_folder import WrongDatabase, look
from shared.clock import SECOND, Clock, RealClock
from shared.command_line import CANNOT_CREATE, DAMAGED, USAGE, run_command, say
from shared.files.durable import FolderInUse
from shared.http.sockets import CannotListen
from shared.settings.base import SettingsError
from shared.settings.load import file_of_host
from shared.sqlite.files import DatabaseUnavailable, NewerSchema, NoRoomForCopy
from shared.units.durations import parse_duration
from shared.units.sizes import say_count, say_size

program = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
admin = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Rare work on a server's data folder."
)
program.add_typer(admin, name="admin")
_PROGRESS_EVERY_S: Final = 1.0
FAILED: Final = 1

Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The server's TOML file [/etc/ferryman/server.toml, if it is there].",
        envvar="FERRYMAN_CONFIG",
    ),
]
DataDir: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The server's data folder [as the file says].")
]
Verify: TypeAlias = Annotated[bool, typer.Option("--verify", help="Check every file's digest.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def used(config: Path | None, data_dir: Path | None = None) -> tuple[Path | None, ServerSettings]:
    """The file that is given, or that of the server on this host; and the settings."""
    file = file_of_host(ServerSettings, "server.toml", config, data_dir)
    return file, read(file, {"server": {"data_dir": data_dir}})


def paths(config: Path | None, data_dir: Path | None) -> tuple[Path, Path]:
    """The data folder, and the database."""
    table = used(config, data_dir)[1].server
    return table.data_dir, table.database


_ENDS: Final[Mapping[int, tuple[type[Exception], ...]]] = {
    USAGE: (SettingsError, CannotListen),
    CANNOT_CREATE: (FolderInUse, NotEmpty, NoRoomForCopy, OSError),
    DAMAGED: (BadBackup, WrongDatabase, DatabaseUnavailable, NewerSchema, sqlite3.Error),
}
_CODES: Final = {USAGE: "bad_argument", CANNOT_CREATE: "file_error", DAMAGED: "damaged"}
"""For programs."""


@contextmanager
def problems() -> Iterator[None]:
    """End the program as what goes wrong in the block says."""
    try:
        yield
    except tuple(chain(*_ENDS.values())) as problem:
        code = next(code for code, kinds in _ENDS.items() if isinstance(problem, kinds))
        message = str(problem)
        if isinstance(problem, OSError) and problem.strerror:
            message = ": ".join(filter(None, (problem.filename, problem.strerror)))
        say("ferryman", sys.argv, _CODES[code], message)
        sys.exit(code)


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
        folder, database = paths(config, data_dir)
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
        folder, database = paths(config, data_dir)
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
            sys.stderr.write(f"  {name}: ferryman token revoke {token}\n")


@program.command()
def doctor(config: Config = None) -> None:
    """For `ferryman doctor`: what is found on a server's host, as JSON. The server may run."""
    with problems():
        file, settings = used(config)
        found = [asdict(one) for one in examine(settings, file, RealClock())]
    print(json.dumps({"findings": found}))  # noqa: T201 - the result


@program.command()
def check(config: Config = None) -> None:
    """For `ferryman check`: what is probably not meant in a server's settings, as JSON."""
    with problems():
        file, settings = used(config)
        check_tokens(settings.server, others=True)  # the database knows whether there are
    doubts = warnings(settings, file)
    with suppress(sqlite3.Error, OSError):  # the doctor says what is wrong with them
        if (wrong := look(settings.server.data_dir, settings.server.database)) is not None:
            doubts.append(str(wrong))
    print(json.dumps({"warnings": doubts}))  # noqa: T201 - the result


@admin.callback()
def _group() -> None:
    """Keep ``verify`` a command of a group."""


@admin.command()
def verify(
    config: Config = None,
    data_dir: DataDir = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired; the server must not run.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare sizes of files, do not read them.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DURATION", help="Only results that are no older: 7d."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the database, and every stored file against its row and its digest.

    Works on the data folder, beside a running server too; with --repair the server must be stopped.

    Exit codes: 0 all is well, or was repaired; 1 something is wrong; 2 settings; 73 a server runs,
    and --repair was given; 74 the database cannot be used.
    """
    clock = RealClock()
    with problems():
        folder, database = paths(config, data_dir)
        begin = None if since is None else clock.now() - round(parse_duration(since) * SECOND)
        progress = _Progress(clock)
        done = Verification(folder, database, repair, not quick, begin, clock, progress).run()
    if as_json:
        typer.echo(json.dumps(asdict(done) | {"checked": dict(done.checked)}))
    else:
        _print_verified(done)
    if done.left:
        raise typer.Exit(FAILED)


class _Progress:
    """A line on a terminal, now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._shown_at = clock, clock.monotonic()

    def __call__(self, what: str, count: int) -> None:
        now = self._clock.monotonic()
        if sys.stderr.isatty() and now - self._shown_at >= _PROGRESS_EVERY_S:
            self._shown_at = now
            sys.stderr.write(f"\r\x1b[Kchecked {count:,} {what}")


def _print_verified(done: Verified) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    for one in done.findings:
        typer.echo(f"{one.about}: {one.message}" + (f" [{one.repaired}]" if one.repaired else ""))
    more = done.left + done.repaired - len(done.findings)
    if more:
        typer.echo(f"and {more:,} more")
    checked = ", ".join(f"{count:,} {what}" for what, count in sorted(done.checked.items()))
    sums = f"{done.left:,} wrong" + (f", {done.repaired:,} repaired" if done.repaired else "")
    typer.echo(f"checked {checked or 'nothing'}: {sums if done.findings else 'all is well'}")


def _told(made: Manifest) -> str:
    total = made.bundle_bytes + made.result_bytes + made.database_bytes
    return (
        f"{say_count(made.jobs, 'job')}, "
        f"{say_count(made.bundles, 'bundle')} ({say_size(made.bundle_bytes)}), "
        f"{say_count(made.results, 'result')} ({say_size(made.result_bytes)}), "
        f"database {say_size(made.database_bytes)}; {say_size(total)} in all"
    )


if __name__ == "__main__":
    run_command(program, "ferryman", sys.argv[1:])
