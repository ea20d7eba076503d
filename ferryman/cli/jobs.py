"""Commands about jobs, thin over the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ferryman.cli import options, show
from ferryman.cli.exits import INTERRUPTED, exit_of_job
from ferryman.cli.options import (
    JobId,
    Json,
    Output,
    Quiet,
    Server,
    Token,
    TokenFile,
    Url,
)
from ferryman.client import DEFAULT_URL, Client
from ferryman.download import place
from ferryman.errors import BadArgument
from ferryman.models import JobDoc, JobState
from ferryman.units import say_size


def submit(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="A folder (what is in it), files (by base name), or one .zip, .tar or .tar.gz. "
            "There must be a run.sh.",
        ),
    ],
    service: Annotated[
        str,
        typer.Option("--service", "-s", envvar="FERRYMAN_SERVICE", help="Which kind of work."),
    ],
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            "-u",
            envvar="FERRYMAN_USER",
            help="Whose job it is; default: your login name.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="To find it again.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="To find it again; may be repeated.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="DURATION", help="Wall time of an attempt, such as 1h30m."
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory, such as 512MB.")
    ] = None,
    cpus: Annotated[
        str | None, typer.Option("--cpus", metavar="NUMBER", help="CPUs, such as 2 or 0.5.")
    ] = None,
    pids: Annotated[
        str | None, typer.Option("--pids", metavar="NUMBER", help="Processes and threads.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option("--disk", metavar="SIZE", help="Disk, such as 1GiB.")
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Follow it to its end; the exit code is then the job's own."
        ),
    ] = False,
    output: Output = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="The same bundle under the same key is one job, however often it is sent.",
        ),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """Send a bundle; print the job's number.

    Limits can only be lower than the service's. With --wait, states and times pass on stderr, and
    the exit code is the job's own (timeout: 124, cancelled: 143). --output implies --wait and
    fetches the result of a job that completed.
    """
    server = Server.named(url, token, token_file)
    whose = user or options.login_name()
    if whose is None:
        raise BadArgument("--user is missing: your login name cannot be used as one")
    if output is not None:
        place(output, "")  # a folder that cannot be made is better told now than in an hour

    async def work() -> int:
        async with server.client() as client:
            try:
                with show.bar("sending", quiet=quiet) as told:
                    accepted = await client.submit(
                        paths,
                        service=service,
                        user=whose,
                        name=name,
                        tags=tag or (),
                        timeout=timeout,
                        memory=memory,
                        cpus=cpus,
                        pids=pids,
                        disk=disk,
                        idempotency_key=idempotency_key,
                        progress=told,
                    )
            except asyncio.CancelledError:
                show.complain("interrupted before the server had answered: there may be no job")
                raise
            following = wait or output is not None
            if not json:
                typer.echo(accepted.id)
            elif not following:
                typer.echo(dumps(asdict(accepted), indent=2))
            if not following:
                if not quiet:
                    show.say(
                        f"job {accepted.id} is accepted; follow it: "
                        + server.command(f"status {accepted.id} --wait")
                    )
                return 0
            job = await _follow(client, server, accepted.id, quiet=quiet)
            if json:
                show.document(job)
            if job.status is JobState.COMPLETED and output is not None:
                await _fetch(client, job.id, output, partial=False, quiet=quiet)
            else:
                _conclude(job, server, quiet=quiet)
            return exit_of_job(job)

    _run(work())


def status(
    job_id: JobId,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Follow it to its end; the exit code is then the job's own."
        ),
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """Show a job."""
    server = Server.named(url, token, token_file)

    async def work() -> int:
        async with server.client() as client:
            if wait:
                job = await _follow(client, server, job_id, quiet=quiet)
            else:
                job = await client.status(job_id)
            if json:
                show.document(job)
            else:
                for line in (*show.details(job), *show.tail(job)):
                    typer.echo(show.printable(line))
            return exit_of_job(job) if wait else 0

    _run(work())


def download(
    job_id: JobId,
    output: Output = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="What there is by now, whatever the state: also of a job that runs or failed.",
        ),
    ] = False,
    quiet: Quiet = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """Fetch the result, a ZIP; print the file's name. It is there only when it is whole."""
    server = Server.named(url, token, token_file)

    async def work() -> int:
        async with server.client() as client:
            path = await _fetch(client, job_id, output or ".", partial=partial, quiet=quiet)
            typer.echo(path)
            return 0

    _run(work())


def cancel(
    job_id: JobId,
    quiet: Quiet = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """Cancel a job; returns when none of its processes is left."""
    server = Server.named(url, token, token_file)

    async def work() -> int:
        async with server.client() as client:
            job = await client.cancel(job_id)
            if json:
                show.document(job)
            elif not quiet:
                show.say(f"job {job_id} is cancelled")
            return 0

    _run(work())


def list_jobs(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Of this user.")] = None,
    service: Annotated[str | None, typer.Option("--service", "-s", help="Of this service.")] = None,
    state: Annotated[JobState | None, typer.Option("--state", help="In this state.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="With this tag.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="At most so many; 0: all.")
    ] = 50,
    json: Json = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """List jobs, newest first."""
    server = Server.named(url, token, token_file)

    async def work() -> int:
        async with server.client() as client:
            found = client.jobs(
                user=user, service=service, state=state, tag=tag, limit=limit or None
            )
            listed = [job async for job in found]
        if json:
            typer.echo("[" + ",\n".join(job.model_dump_json() for job in listed) + "]")
        else:
            show.jobs(listed)
        return 0

    _run(work())


async def _follow(client: Client, server: Server, job_id: int, *, quiet: bool) -> JobDoc:
    try:
        job = await client.status(job_id)
        client.patience = options.PATIENT_S
        async for event in client.events(job_id):
            if not quiet:
                show.say(show.event_line(event, job.created_at))
        return await client.wait(job_id)
    except asyncio.CancelledError:
        show.say(f"the job goes on: {server.command(f'status {job_id}')}")
        raise


async def _fetch(client: Client, job_id: int, to: str, *, partial: bool, quiet: bool) -> Path:
    with show.bar("fetching", quiet=quiet) as told:
        done = await client.download(job_id, to, partial=partial, progress=told)
    if not quiet:
        show.say(f"saved {done.path} ({say_size(done.size)})")
    return done.path


def _conclude(job: JobDoc, server: Server, *, quiet: bool) -> None:
    """Say how it ended. Why it failed is an error, so --quiet does not silence it."""
    if job.status is JobState.COMPLETED:
        if not quiet:
            show.say(f"fetch the result: {server.command(f'download {job.id}')}")
        return
    reason = f" ({job.reason})" if job.reason else ""
    show.say(f"job {job.id} {job.status}{reason}: {job.message}")
    for line in show.tail(job):
        show.say(line)
    show.say(f"what it left, logs included: {server.command(f'download {job.id} --partial')}")


def _run(work: Coroutine[Any, Any, int]) -> None:
    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if code:
        raise typer.Exit(code)
