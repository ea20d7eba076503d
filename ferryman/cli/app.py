"""``ferryman`` itself: its own options; the commands are in ``ferryman.cli.commands``."""

from __future__ import annotations

from typing import Annotated

import typer

from ferryman.cli.sections import Sections

app = typer.Typer(
    cls=Sections,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text: server and agent look the same, and rich is slow to load
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0, or with --wait the job's own; 2 usage, 65 bundle refused, "
    "69 unreachable, 75 try later, 77 not allowed, 124 timeout, 130 interrupted, 143 cancelled.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from ferryman import __version__

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

    --url, --token and --token-file say which server; so do the variables FERRYMAN_URL and
    FERRYMAN_TOKEN. Options may stand before or behind the command. --json is for programs: it
    prints documents, and errors as one line of JSON on stderr.
    """
