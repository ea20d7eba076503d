"""The commands, by name."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ferryman.cli import (
    admin,
    agents,
    attempts,
    audit,
    batches,
    bench,
    browsers,
    config,
    files,
    jobs,
    many,
    programs,
    results,
    schedules,
    services,
    tokens,
    webhooks,
)
from ferryman.cli.completion import completion
from ferryman.cli.doctor import doctor
from ferryman.cli.sections import FOR_OPERATORS, OWN, PROGRAMS, Sections
from ferryman.cli.statistics import statistics
from ferryman.cli.submit import submit
from ferryman.cli.usage import usage

_PASSED_ON: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}

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

app.command("submit")(submit)
app.command("status")(jobs.status)
app.command("list")(jobs.list_jobs)
app.command("wait")(jobs.wait_for_jobs)
app.command("logs")(attempts.logs)
app.command("events")(webhooks.events)
app.command("attempts")(attempts.attempts)
app.command("files")(files.files)
app.command("download")(results.download)
app.command("cancel")(many.cancel)
app.command("retry", help=many.RETRY_HELP)(many.retry_or_delete)
app.command("delete", help=many.DELETE_HELP)(many.retry_or_delete)
app.command("dead-letters")(batches.dead_letters)
app.command("graph")(batches.graph)
app.add_typer(batches.app, name="batch")
app.add_typer(schedules.app, name="schedule")
app.add_typer(webhooks.app, name="deliveries")
app.add_typer(services.app, name="services")
app.add_typer(agents.app, name="agents", rich_help_panel=FOR_OPERATORS)
app.command("drain", rich_help_panel=FOR_OPERATORS)(agents.drain)
app.command("audit", rich_help_panel=FOR_OPERATORS)(audit.audit)
app.command("bench", rich_help_panel=FOR_OPERATORS)(bench.bench)
app.command("statistics", rich_help_panel=FOR_OPERATORS)(statistics)
app.add_typer(tokens.app, name="token", rich_help_panel=FOR_OPERATORS)
app.command("whoami")(tokens.whoami)
app.command("usage")(usage)
app.command("link")(browsers.link)
app.command("ticket")(browsers.ticket)
app.command("dashboard")(browsers.dashboard)
app.command("dev", rich_help_panel=PROGRAMS)(programs.dev)
app.command("server", rich_help_panel=PROGRAMS, context_settings=_PASSED_ON)(programs.server)
app.command("agent", rich_help_panel=PROGRAMS, context_settings=_PASSED_ON)(programs.agent)
app.command("backup", rich_help_panel=FOR_OPERATORS, context_settings=_PASSED_ON)(programs.backup)
app.command("restore", rich_help_panel=FOR_OPERATORS, context_settings=_PASSED_ON)(programs.restore)
app.add_typer(admin.app, name="admin", rich_help_panel=FOR_OPERATORS)
app.add_typer(config.app, name="config", rich_help_panel=FOR_OPERATORS)
app.command("doctor", rich_help_panel=OWN)(doctor)
app.command("completion", rich_help_panel=OWN)(completion)


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
