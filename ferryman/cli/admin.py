"""Rare work of operators: on a server's data folder, or through its API."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import typer

from ferryman.cli.programs import run_program

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Verify, recount, requeue, forget a user, roll back.",
)
_PASSED_ON: Final[dict[str, Any]] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def _on_folder(context: typer.Context) -> NoReturn:
    run_program("server.maintenance", ["admin", context.info_name or "", *context.args])


for _name, _help in (
    ("verify", "Check every file, digest and row; on the data folder."),
    ("recount", "Count again what is counted; on the data folder."),
    ("vacuum", "Write the database anew, the server stopped."),
    ("size", "Show what the database takes, by table."),
    ("upgrade", "Bring the database to this version's schema, the server stopped."),
    ("rollback", "Go back to the copy before an upgrade, the server stopped."),
):
    app.command(_name, help=_help, context_settings=_PASSED_ON)(_on_folder)
