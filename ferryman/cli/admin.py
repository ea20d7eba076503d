"""Rare work of operators: on a server's data folder, or through its API."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED
from ferryman.cli.options import Json, on_server
from ferryman.cli.programs import run_program
from ferryman.errors import BadArgument, FerrymanError

if TYPE_CHECKING:
    from ferryman.client import Client

DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

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


@app.command()
@on_server
async def requeue(
    job_ids: Annotated[list[int], typer.Argument(metavar="ID...", hidden=True)],
    service: Annotated[
        str | None,
        typer.Option("--service", "-s", metavar="NAME", help="Of this service from now on."),
    ] = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Its agent's host is off, and stays off.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    *,
    client: Client,
) -> int:
    """Queue jobs again that `ferryman retry` does not.

    Through the API, by operators: jobs that have completed, that are stuck at an agent, or whose
    service has another name now. A job that its agent has is refused: cancel it first.
    """
    if not (yes or dry_run):
        _ask(f"queue {len(job_ids)} job{'s' * (len(job_ids) != 1)} again?", "admin requeue")
    failed, jobs = 0, []
    for job_id in job_ids:
        try:
            job = await client.requeue(job_id, service=service, lost=lost, dry_run=dry_run)
        except FerrymanError as problem:
            if len(job_ids) == 1:
                raise
            failed += 1
            show.print_error(f"{problem}")
            continue
        jobs.append(job)
        if not json:
            done = f"can be queued again (it is {job.status})" if dry_run else job.message
            show.print_message(f"job {job.id}: {done}")
    if json:
        show.print_json_list(jobs)
    return FAILED if failed else 0


def _ask(question: str, command: str) -> None:
    if not sys.stdin.isatty():
        raise BadArgument(f"{command} asks first: give --yes where there is no terminal")
    typer.confirm(show.printable(question), abort=True, err=True)
