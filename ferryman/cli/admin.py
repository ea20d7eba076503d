"""Rare work of operators: on a server's data folder, or through its API."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED, TRY_LATER
from ferryman.cli.options import Json, on_server
from ferryman.cli.programs import run_program
from ferryman.errors import BadArgument, FerrymanError
from ferryman.units import say_count

if TYPE_CHECKING:
    from ferryman.client import Client

_COMMAND: Final = "admin forget-user"
_RENAMED: Final = "audit"
_KINDS: Final = {
    "jobs": "job",
    "schedules": "schedule",
    "deliveries": "webhook delivery",
    "keys": "idempotency key",
    "tokens": "token",
    "uploaded": "daily upload count",
}
"""What of a user is counted, in words."""

DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Verify, requeue, forget a user.",
)


@app.command(
    "verify",
    help="On the data folder: check every file, digest and row.",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
)
def _verify(context: typer.Context) -> NoReturn:
    run_program("server.maintenance", ["admin", "verify", *context.args])


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
    """Through the server: queue jobs again that `retry` does not.

    By operators: jobs that have completed, that are stuck at an agent, or whose
    service has another name now. A job that its agent has is refused: cancel it first.
    """
    if not (yes or dry_run):
        _ask(f"queue {say_count(len(job_ids), 'job')} again?", "admin requeue")
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
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    *,
    client: Client,
) -> int:
    """Through the server: remove all data of a user.

    A report says what. By operators with the scope admin: tokens end, jobs are
    cancelled and deleted with all that they left, on the agents too; in the audit trail another
    name stands in place of the user's. What is interrupted goes on when it is called again.

    Exit codes: 1 nothing is known of the user; 75 jobs are left whose agent cannot be reached.
    """
    if dry_run or not yes:
        known = await client.forget_user(user, dry_run=True)
        if not any(known.found.values()):
            raise _nothing_known(user)
        text = _counts(known.found, "would be given")
        if dry_run:
            if json:
                show.print_json(known)
            else:
                show.print_message(f"{user}: {text}")
            return 0
        _ask(f"remove all data of user {user}, {text}? It cannot be brought back", _COMMAND)
    report = await client.forget_user(user)
    if json:
        show.print_json(report)
    elif report.removed:
        show.print_message(f"{user}: removed {_counts(report.removed, 'were given')}")
    for job in () if json else report.waiting:
        show.print_message(f"  job {job.id} is not gone yet: {job.why}")
    for line in () if json else report.kept:
        show.print_message(f"  kept: {line}")
    if report.done and not report.removed:
        raise _nothing_known(user)
    return 0 if report.done else TRY_LATER


def _counts(counts: Mapping[str, int], given: str) -> str:
    """``3 jobs, 1 token``, and how many entries of the audit trail stay with another name."""
    said = [say_count(counts[kind], what) for kind, what in _KINDS.items() if counts.get(kind)]
    text = ", ".join(said) or "nothing"
    renamed = counts.get(_RENAMED)
    return f"{text}; {say_count(renamed, 'audit entry')} {given} another name" if renamed else text


def _nothing_known(user: str) -> FerrymanError:
    problem = FerrymanError(f"nothing is known of user {user}")
    problem.add_note("is the name right? Whoever is forgotten already is not known any more")
    return problem


def _ask(question: str, command: str) -> None:
    if not sys.stdin.isatty():
        raise BadArgument(f"{command} asks first: give --yes where there is no terminal")
    typer.confirm(show.printable(question), abort=True, err=True)
