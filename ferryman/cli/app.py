"""The commands, by name."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ferryman import __version__
from ferryman.cli import jobs, programs

_PASSED_ON: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0, or with --wait the job's own; 2 usage, 65 bundle refused, "
    "69 unreachable, 75 try later, 77 not allowed, 124 timeout, 130 interrupted, 143 cancelled.",
)
_WORK: Final = "Jobs"
_RUN: Final = "Programs"

app.command("submit", rich_help_panel=_WORK)(jobs.submit)
app.command("status", rich_help_panel=_WORK)(jobs.status)
app.command("download", rich_help_panel=_WORK)(jobs.download)
app.command("cancel", rich_help_panel=_WORK)(jobs.cancel)
app.command("list", rich_help_panel=_WORK)(jobs.list_jobs)
app.command("dev", rich_help_panel=_RUN)(programs.dev)
app.command("server", rich_help_panel=_RUN, context_settings=_PASSED_ON)(programs.server)
app.command("agent", rich_help_panel=_RUN, context_settings=_PASSED_ON)(programs.agent)
app.command("backup", rich_help_panel=_RUN, context_settings=_PASSED_ON)(programs.backup)
app.command("restore", rich_help_panel=_RUN, context_settings=_PASSED_ON)(programs.restore)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ferryman {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Carry bundles of files to compute hosts and bring the results back.

    A bundle is any files plus a run.sh. See `ferryman submit --help`.
    """
