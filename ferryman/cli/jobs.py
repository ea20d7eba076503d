"""Commands for existing jobs: one, several, or all that fit, thin over the SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED, exit_code_of_jobs
from ferryman.cli.options import (
    All,
    AnyJobIds,
    CancelOnInterrupt,
    DeadLetters,
    InState,
    JobIds,
    Json,
    Limit,
    OfService,
    OfUser,
    Parent,
    Quiet,
    Server,
    Since,
    WithReason,
    WithTag,
    Yes,
    ask,
    on_server,
    run,
    seconds,
    state_named,
)
from ferryman.errors import BadArgument, NotFound

if TYPE_CHECKING:
    from ferryman.client import BulkAction, Client
    from ferryman.models.jobs import BulkItem, JobDoc
    from ferryman.upload import JobFilter

EXPLAIN_CANCEL_AFTER_S: float = 5.0
"""A cancel that takes longer is explained."""


@on_server
def status(
    job_ids: JobIds,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Follow it to its end; the exit code is then the job's own."
        ),
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Show jobs.

    With their attempts, where there are several. With --wait: once they have ended, as `ferryman
    wait` does.
    """
    from ferryman.cli.follow import wait_for

    async def work() -> int:
        async with server.client() as client:
            missing: NotFound | None = None
            if wait:
                jobs = await wait_for(client, server, job_ids, quiet=quiet)
            else:
                jobs = []
                for job_id in job_ids:
                    try:
                        jobs.append(await client.status(job_id))
                    except NotFound as problem:  # the others are shown all the same
                        missing = missing or problem
            if missing is not None and not jobs:
                raise missing
            if json:
                show.print_one_or_list(jobs)
            else:
                _print(jobs)
            if missing is not None:
                raise missing
            return exit_code_of_jobs(jobs) if wait else 0

    run(work())


def _print(jobs: list[JobDoc]) -> None:
    for at, job in enumerate(jobs):
        if at:
            typer.echo()
        for line in (*show.details(job), *show.stderr_lines(job)):
            typer.echo(show.printable(line))
        if len(job.attempts or ()) > 1:
            show.print_attempts(job.attempts or ())


@on_server
def wait_for_jobs(
    job_ids: JobIds,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            parser=seconds,
            help="Wait at most so long, such as 90s or 1h30m; then the exit code is 124.",
        ),
    ] = None,
    cancel_on_interrupt: CancelOnInterrupt = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Wait until jobs have ended.

    Of a single job, states, times, why it waits and what it prints are shown on stderr. The exit
    code is the job's own (timeout: 124, cancelled: 143); of several, that of the first one, as they
    are named, that did not complete.
    """
    from ferryman.cli.follow import conclude, wait_for

    async def work() -> int:
        async with server.client() as client:
            jobs = await wait_for(
                client, server, job_ids, quiet=quiet, timeout=timeout, cancel=cancel_on_interrupt
            )
            if json:
                show.print_one_or_list(jobs)
            elif len(jobs) == 1:
                conclude(jobs[0], server, quiet=quiet)
            return exit_code_of_jobs(jobs)

    run(work())


def _cancel_one(server: Server, job_id: int, *, quiet: bool, json: bool) -> None:
    """Cancel a job; returns when none of its processes is left."""

    async def work() -> int:
        async with server.client() as client:
            job = await _cancelled(client, job_id, quiet=quiet)
            if json:
                show.print_json(job)
            elif not quiet:
                show.print_message(f"job {job_id} is cancelled")
            return 0

    run(work())


async def _cancelled(client: Client, job_id: int, *, quiet: bool) -> JobDoc:
    """Cancel it; if that takes long, say why: its agent may be away for days."""
    import asyncio

    cancelling = asyncio.ensure_future(client.cancel(job_id))
    try:
        if not (await asyncio.wait({cancelling}, timeout=EXPLAIN_CANCEL_AFTER_S))[0] and not quiet:
            job = await client.status(job_id)
            whose = f"agent {job.agent}" if job.agent else "the server"
            why = f": {job.message}" if job.status == "Unknown" else ""
            show.print_message(
                f"the cancel is stored; {whose} has not confirmed yet that no process of job "
                f"{job_id} is left{why} (Ctrl-C ends this command, the cancel stays)"
            )
        return await cancelling
    finally:
        cancelling.cancel()


@on_server
def list_jobs(
    user: OfUser = None,
    service: OfService = None,
    state: InState = None,
    tag: WithTag = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="TEXT",
            help="Those with this number, or with it in the name, a tag or the message.",
        ),
    ] = None,
    reason: WithReason = None,
    since: Since = None,
    parent: Parent = None,
    batches: Annotated[
        bool, typer.Option("--batches", help="Only parents: jobs with children.")
    ] = False,
    dead_letters: DeadLetters = False,
    limit: Limit = 50,
    top_level: Annotated[
        bool, typer.Option("--top-level", help="Without the children of batches.")
    ] = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """List jobs, newest first."""
    wanted = state_named(state)
    most = limit or None

    async def work() -> int:
        async with server.client() as client:
            jobs = client.jobs(
                user=user,
                service=service,
                state=wanted,
                tag=tag,
                text=text,
                reason=reason,
                since=since,
                parent=parent,
                batch=batches,
                dead_letter=dead_letters,
                top_level=top_level,
                limit=None if most is None else most + 1,
            )
            listed = [job async for job in jobs]
            more = most is not None and len(listed) > most
            listed = listed[:most]
            if json:
                show.print_json_list(listed)
            else:
                show.print_jobs(listed)
            if more:
                show.print_message(f"these are the newest {most}; --limit N shows more, 0 all")
        return 0

    run(work())


@on_server
def cancel(
    job_ids: AnyJobIds = None,
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
        _cancel_one(server, job_ids[0], quiet=quiet, json=json)
        return
    _do(server, "cancel", job_ids, where, every=every, yes=yes, quiet=quiet, json=json)


def _of_many(action: BulkAction, about: str) -> Callable[..., None]:
    """``ferryman retry`` and ``ferryman delete``."""

    def command(
        job_ids: AnyJobIds = None,
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
        where: JobFilter = {"user": user, "service": service, "state": state_named(state)}
        where |= {"tag": tag, "reason": reason, "dead_letter": dead_letters}
        _do(server, action, job_ids, where, every=every, yes=yes, quiet=quiet, json=json)

    command.__name__, command.__doc__ = action, about
    return on_server(command)


retry = _of_many(
    "retry",
    """Run jobs again that failed or were cancelled.

    They get fresh retries. Give IDs (or last), or --all with options that choose.
    """,
)
delete = _of_many(
    "delete",
    """Delete jobs with all that they left.

    What has not ended is cancelled, and kept. Give IDs (or last), or --all with options that
    choose.
    """,
)


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
        ask(f"{action} all jobs {whose}?", action)

    async def work() -> int:
        async with server.client() as client:
            items = [item async for item in client.bulk(action, job_ids or None, where)]
        if json:
            show.print_json_list(items)
        else:
            _print_done(action, items, quiet=quiet)
        return 0 if all(item.ok for item in items) else FAILED

    run(work())


def _print_done(action: BulkAction, items: list[BulkItem], *, quiet: bool) -> None:
    if not items and not quiet:
        show.print_message("no job fits")
    for item in items:
        if item.ok and quiet:
            continue
        line = item.message or (f"{action}: done" if item.ok else str(item.code))
        if f"job {item.id} " not in f"{line} ".lower():
            line = f"job {item.id}: {line}"
        show.print_message(line)
