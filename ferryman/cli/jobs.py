"""Commands for existing jobs: one, several, or all that fit, thin over the SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED, exit_code_of_jobs
from ferryman.cli.options import (
    FILTERS,
    All,
    AnyJobIds,
    CancelOnInterrupt,
    JobIds,
    Json,
    Limit,
    Quiet,
    Server,
    Yes,
    ask,
    on_server,
    seconds,
    state_named,
    with_options,
)
from ferryman.errors import BadArgument, NotFound

if TYPE_CHECKING:
    from ferryman.client import BulkAction, Client
    from ferryman.models.jobs import JobDoc

EXPLAIN_CANCEL_AFTER_S: float = 5.0
"""A cancel that takes longer is explained."""


@on_server
async def status(
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
    client: Client,
) -> int:
    """Show jobs.

    With their attempts, where there are several. With --wait: once they have ended, as `ferryman
    wait` does.
    """
    from ferryman.cli.follow import wait_for

    missing: NotFound | None = None
    jobs: list[JobDoc] = []
    if wait:
        jobs = await wait_for(client, server, job_ids, quiet=quiet)
    for job_id in () if wait else job_ids:
        try:
            jobs.append(await client.status(job_id))
        except NotFound as problem:  # the others are shown all the same
            missing = missing or problem
    if json and jobs:
        show.print_one_or_list(jobs)
    for at, job in enumerate(() if json else jobs):
        if at:
            typer.echo()
        show.print_lines((*show.details(job), *show.stderr_lines(job)))
        if len(job.attempts or ()) > 1:
            show.print_attempts(job.attempts or ())
    if missing is not None:
        raise missing
    return exit_code_of_jobs(jobs) if wait else 0


@on_server
async def wait_for_jobs(
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
    client: Client,
) -> int:
    """Wait until jobs have ended.

    Of a single job, states, times, why it waits and what it prints are shown on stderr. The exit
    code is the job's own (timeout: 124, cancelled: 143); of several, that of the first one, as they
    are named, that did not complete.
    """
    from ferryman.cli.follow import conclude, wait_for

    jobs = await wait_for(
        client, server, job_ids, quiet=quiet, timeout=timeout, cancel=cancel_on_interrupt
    )
    if json:
        show.print_one_or_list(jobs)
    elif len(jobs) == 1:
        conclude(jobs[0], server, quiet=quiet)
    return exit_code_of_jobs(jobs)


@on_server
@with_options(FILTERS)
async def list_jobs(limit: Limit = 50, json: Json = False, *, client: Client, **where: Any) -> None:
    """List jobs, newest first."""
    where["state"] = state_named(where["state"])
    found = client.jobs(limit=limit + 1 if limit else None, **where)
    listed = [job async for job in found]
    more = 0 < limit < len(listed)
    listed = listed[: limit or None]
    if json:
        show.print_json_list(listed)
    else:
        show.print_jobs(listed)
    if more:
        show.print_message(f"these are the newest {limit}; --limit N shows more, 0 all")


def _of_many(action: BulkAction, about: str, *filters: str) -> Callable[..., None]:
    """The command that does this to jobs."""

    @with_options({name: FILTERS[name] for name in filters})
    async def command(
        job_ids: AnyJobIds = None,
        every: All = False,
        yes: Yes = False,
        quiet: Quiet = False,
        json: Json = False,
        *,
        server: Server,
        client: Client,
        **where: Any,
    ) -> int:
        where["state"] = state_named(where["state"])
        given = [(name.replace("_", " "), value) for name, value in where.items() if value]
        if action == "cancel" and job_ids and len(job_ids) == 1 and not (given or every):
            job = await _cancelled(client, job_ids[0], quiet=quiet)
            show.emit(job, f"job {job.id} is cancelled", json=json, quiet=quiet)
            return 0
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
            ask(f"{action} all jobs {f'with {which}' if which else 'that you may see'}?", action)
        items = [item async for item in client.bulk(action, job_ids or None, where)]  # type: ignore[arg-type]
        if json:
            show.print_json_list(items)
        elif not items and not quiet:
            show.print_message("no job fits")
        for item in () if json else items:
            if item.ok and quiet:
                continue
            line = item.message or (f"{action}: done" if item.ok else str(item.code))
            named = f"job {item.id} " in f"{line} ".lower()
            show.print_message(line if named else f"job {item.id}: {line}")
        return 0 if all(item.ok for item in items) else FAILED

    command.__name__, command.__doc__ = action, about
    return on_server(command)


_USUAL = ("user", "service", "state", "tag")
cancel = _of_many(
    "cancel",
    """Cancel jobs.

    Give IDs (or last), or --all with options that choose: all that have not ended and fit. Of a
    single one it returns when none of its processes is left.
    """,
    *_USUAL,
)
retry = _of_many(
    "retry",
    """Run jobs again that failed or were cancelled.

    They get fresh retries. Give IDs (or last), or --all with options that choose.
    """,
    *(*_USUAL, "reason", "dead_letter"),
)
delete = _of_many(
    "delete",
    """Delete jobs with all that they left.

    What has not ended is cancelled, and kept. Give IDs (or last), or --all with options that
    choose.
    """,
    *(*_USUAL, "reason", "dead_letter"),
)


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
