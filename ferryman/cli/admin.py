"""Rare work of operators: on a server's data folder, or through its API."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED, TRY_LATER
from ferryman.cli.options import Json, on_server, whole
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
    ("upgrade", "Bring the database to this schema, the server stopped."),
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


@app.command("forget-user")
@on_server
async def forget_user(
    user: Annotated[str, typer.Argument(metavar="USER", hidden=True)],
    wait: Annotated[
        int,
        typer.Option(
            "--patience",
            parser=whole(0),
            metavar="SECONDS",
            help="How long to wait for jobs that still run.",
        ),
    ] = 60,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    *,
    client: Client,
) -> int:
    """Remove all data of a user, with a report.

    Through the API, by operators with the scope admin: tokens and sessions end, jobs are cancelled
    and deleted with all that they left, on the agents too; in the audit trail another name stands
    in place of the user's. What is interrupted goes on when it is called again.

    Exit code 75: jobs are left whose agent cannot be reached.
    """
    if dry_run:
        found = await client.forget_user(user, dry_run=True)
        if json:
            show.print_json(found)
        else:
            show.print_message(f"{user}: {_counts(found.found) or 'nothing is known of it'}")
        return 0
    if not yes:
        _ask(f"remove all data of user {user}? It cannot be brought back", "admin forget-user")
    removed: Counter[str] = Counter()
    tries = wait
    while True:
        report = await client.forget_user(user)
        removed.update(report.removed)
        if report.done or (not report.removed and tries <= 0):
            break
        if not report.removed:  # the server has waited
            tries -= 1
    report = report.model_copy(update={"removed": dict(removed)})
    if json:
        show.print_json(report)
    else:
        show.print_message(f"{user}: removed {_counts(report.removed) or 'nothing'}")
        for job in report.waiting:
            show.print_message(f"  job {job.id} is not gone yet: {job.why}")
        for line in report.kept:
            show.print_message(f"  kept: {line}")
    return 0 if report.done else TRY_LATER


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()) if count)


def _ask(question: str, command: str) -> None:
    if not sys.stdin.isatty():
        raise BadArgument(f"{command} asks first: give --yes where there is no terminal")
    typer.confirm(show.printable(question), abort=True, err=True)
