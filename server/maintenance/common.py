"""What the commands on a server's data folder share: their options, and how they end."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, NoReturn, TypeAlias

import typer

from server.maintenance.backup import DATABASE
from server.maintenance.restore import BadBackup, NotEmpty
from server.settings.load import read
from server.settings.tables import ServerSettings
from server.store.data_folder import WrongDatabase
from shared.files.durable import FolderInUse
from shared.http.sockets import CannotListen
from shared.settings.base import SettingsError
from shared.settings.load import file_of_host
from shared.sqlite.files import DatabaseUnavailable, NewerSchema, NoRoomForCopy

FAILED: Final = 1
USAGE: Final = 2
CANNOT_CREATE: Final = 73
DAMAGED: Final = 74

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


def settings_file(config: Path | None, data_dir: Path | None = None) -> Path | None:
    """The file that is given, or that of the server on this host."""
    return file_of_host(ServerSettings, "server.toml", config, data_dir)


def server_settings(config: Path | None, data_dir: Path | None) -> ServerSettings:
    return read(settings_file(config, data_dir), {"server": {"data_dir": data_dir}})


def server_paths(config: Path | None, data_dir: Path | None) -> tuple[Path, Path]:
    return paths_of(server_settings(config, data_dir))


def paths_of(settings: ServerSettings) -> tuple[Path, Path]:
    """The data folder, and the database."""
    table = settings.server
    return table.data_dir, table.db_path or table.data_dir / DATABASE


@contextmanager
def problems() -> Iterator[None]:
    try:
        yield
    except (SettingsError, CannotListen) as problem:
        _end(USAGE, str(problem))
    except (FolderInUse, NotEmpty) as problem:
        _end(CANNOT_CREATE, str(problem))
    except (
        BadBackup,
        WrongDatabase,
        DatabaseUnavailable,
        NewerSchema,
        sqlite3.Error,
    ) as problem:
        _end(DAMAGED, str(problem))
    except NoRoomForCopy as problem:
        _end(CANNOT_CREATE, str(problem))
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        _end(CANNOT_CREATE, f"{where}{problem.strerror}")


_CODES: Final = {USAGE: "bad_argument", CANNOT_CREATE: "file_error", DAMAGED: "damaged"}
"""For programs."""


def _end(code: int, message: str) -> NoReturn:
    if "--json" in sys.argv:
        error = {"code": _CODES[code], "message": message, "hint": None}
        sys.stderr.write(f"{json.dumps({'error': error})}\n")
    else:
        sys.stderr.write(f"ferryman: {message}\n")
    sys.exit(code)
