"""Commands that do the same to several jobs, thin over the SDK."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from ferryman.cli import options, show
from ferryman.cli.exits import FAILED
from ferryman.cli.filters import DeadLetters, InState, OfService, OfUser, WithReason, WithTag
from ferryman.cli.options import Json, Quiet, Server, on_server, run, state_named
from ferryman.errors import BadArgument

if TYPE_CHECKING:
    from ferryman.bulk_models import BulkItem
    from ferryman.fields import JobFilter
    from ferryman.job_calls import BulkAction

JobIds: TypeAlias = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID", parser=options.job_id, hidden=True),
]
All: TypeAlias = Annotated[
    bool, typer.Option("--all", help="All jobs that fit the options; without any, all you may see.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@on_server
def cancel(
    job_ids: JobIds = None,
    every: All = False,
    user: OfUser = None,
    service: OfService = None,
    state: InState = None,
    tag: WithTag = None,
    yes: Yes = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Cancel jobs.

    Give IDs (or last), or --all with options that choose: all that have not ended and fit. Of a
    single one it returns when none of its processes is left.
    """
    where: JobFilter = {"user": user, "service": service, "state": state_named(state), "tag": tag}
    if job_ids is not None and len(job_ids) == 1 and not (any(where.values()) or every):
        from ferryman.cli.jobs import cancel_one

        cancel_one(server, job_ids[0], quiet=quiet, json=json)
        return
    _do(server, "cancel", job_ids, where, every=every, yes=yes, quiet=quiet, json=json)


RETRY_HELP: Final = """Run jobs again that failed or were cancelled.

They get fresh retries. Give IDs (or last), or --all with options that choose.
"""
DELETE_HELP: Final = """Delete jobs with all that they left.

What has not ended is cancelled, and kept. Give IDs (or last), or --all with options that choose.
"""


@on_server
def retry_or_delete(
    context: typer.Context,
    job_ids: JobIds = None,
    every: All = False,
    user: OfUser = None,
    service: OfService = None,
    state: InState = None,
    tag: WithTag = None,
    reason: WithReason = None,
    dead_letters: DeadLetters = False,
    yes: Yes = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """``ferryman retry`` and ``ferryman delete``, by the name of the command."""
    where: JobFilter = {"user": user, "service": service, "state": state_named(state), "tag": tag}
    where |= {"reason": reason, "dead_letter": dead_letters}
    action: BulkAction = "retry" if context.info_name == "retry" else "delete"
    _do(server, action, job_ids, where, every=every, yes=yes, quiet=quiet, json=json)


def _do(
    server: Server,
    action: BulkAction,
    job_ids: list[int] | None,
    where: JobFilter,
    *,
    every: bool,
    yes: bool,
    quiet: bool,
    json: bool,
) -> None:
    given = [(name.replace("_", " "), value) for name, value in where.items() if value]
    which = ", ".join(name if value is True else f"{name} {value}" for name, value in given)
    if bool(job_ids) == every or (job_ids and given):
        problem = BadArgument(
            "give the numbers of jobs, or --all and options that choose; not both"
            if job_ids or not given
            else f"to {action} all jobs with {which}, add --all"
        )
        problem.add_note(f"all of one user: {server.command(f'{action} --all --user NAME')}")
        raise problem
    if every and not yes:
        whose = f"with {which}" if which else "that you may see"
        if not sys.stdin.isatty():
            raise BadArgument(f"{action} all jobs {whose}? --yes says so")
        typer.confirm(f"{action} all jobs {whose}?", abort=True, err=True)

    async def work() -> int:
        async with server.client() as client:
            items = [item async for item in client.bulk(action, job_ids or None, where)]
        if json:
            show.print_json_list(items)
        else:
            _print(action, items, quiet=quiet)
        return 0 if all(item.ok for item in items) else FAILED

    run(work())


def _print(action: BulkAction, items: list[BulkItem], *, quiet: bool) -> None:
    if not items and not quiet:
        show.print_message("no job fits")
    for item in items:
        if item.ok and quiet:
            continue
        line = item.message or (f"{action}: done" if item.ok else str(item.code))
        if f"job {item.id} " not in f"{line} ".lower():
            line = f"job {item.id}: {line}"
        show.print_message(line)
