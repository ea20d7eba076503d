"""Commands about jobs, thin over the SDK."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman import DEFAULT_URL
from ferryman.cli import options, show
from ferryman.cli.exits import INTERRUPTED, exit_of, exit_of_job
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
from ferryman.errors import BadArgument, NoResult
from ferryman.units import say_size

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models import JobDoc

STDOUT: Final = "-"
_LOOKED_THROUGH: Final = 1 << 16
"""Bytes of a run.sh in which its line ends are looked for."""
_ASKED_WHY: Final = 8
"""Users and services of which a list asks why their jobs wait."""


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
        typer.Option(
            "--service", "-s", metavar="NAME", envvar="FERRYMAN_SERVICE", help="Which kind of work."
        ),
    ],
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            "-u",
            metavar="NAME",
            envvar="FERRYMAN_USER",
            help="Whose job it is; default: your login name.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="To find it again.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="To find it again; may be repeated."),
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
    import asyncio

    from ferryman.cli.follow import follow
    from ferryman.download import place

    server = Server.named(url, token, token_file)
    whose = user or options.login_name()
    if whose is None:
        raise BadArgument("--user is missing: your login name cannot be used as one")
    if output == STDOUT:
        raise BadArgument("the job's number goes to stdout; then: ferryman download ID -o -")
    if output is not None:
        place(output, "")  # a folder that cannot be made is better told now than in an hour

    if not quiet:
        _warn_of_line_ends(paths)

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
                # Alone on its line for scripts; a person would wonder what the number means.
                typer.echo(f"job {accepted.id}" if sys.stdout.isatty() else accepted.id)
            elif not following:
                typer.echo(dumps(asdict(accepted), indent=2))
            if not following:
                if not quiet:
                    show.say(
                        f"job {accepted.id} is accepted; follow it: "
                        + server.command(f"status {accepted.id} --wait")
                    )
                return 0
            job = await follow(client, server, accepted.id, quiet=quiet)
            if json:
                show.document(job)
            if job.status == "Completed" and output is not None:
                await _fetch(client, job.id, output, partial=False, quiet=quiet)
            else:
                _conclude(job, server, quiet=quiet)
            return exit_of_job(job)

    _run(work())


def _warn_of_line_ends(paths: Sequence[Path]) -> None:
    for path in paths:
        script = path / "run.sh" if path.is_dir() else path
        if script.name != "run.sh" or not script.is_file():
            continue
        with contextlib.suppress(OSError), script.open("rb") as file:
            if b"\r\n" in file.read(_LOOKED_THROUGH):
                show.say(
                    f"warning: {script} has Windows line ends (CRLF), which bash does not "
                    "understand; most editors can save it with Unix line ends (LF)"
                )


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
    from ferryman.cli.follow import follow

    server = Server.named(url, token, token_file)

    async def work() -> int:
        async with server.client() as client:
            if wait:
                job = await follow(client, server, job_id, quiet=quiet)
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
    """Fetch the result, a ZIP; print the file's name. It is there only when it is whole.

    With --output - the ZIP itself goes to stdout.
    """
    server = Server.named(url, token, token_file)

    if output == STDOUT and sys.stdout.isatty():
        raise BadArgument("a ZIP would confuse your terminal: send stdout to a file or a program")

    async def work() -> int:
        async with server.client() as client:
            try:
                if output == STDOUT:
                    await _print_zip(client, job_id, partial=partial, quiet=quiet)
                else:
                    to = output or "."
                    typer.echo(await _fetch(client, job_id, to, partial=partial, quiet=quiet))
            except NoResult as problem:
                # The server ends with a path, which is for those who use HTTP.
                show.complain(str(problem).partition(". What it left: ")[0])
                if problem.status == 409:
                    show.say(_leftovers(server, job_id))
                return exit_of(problem)
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
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="NAME", help="Of this user.")
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", "-s", metavar="NAME", help="Of this service.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="In this state.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="With this tag.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, metavar="N", help="At most so many; 0: all.")
    ] = 50,
    every: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """List jobs, newest first."""
    server = Server.named(url, token, token_file)
    wanted = _state(state)
    most = 0 if every else limit

    async def work() -> int:
        async with server.client() as client:
            found = client.jobs(
                user=user, service=service, state=wanted, tag=tag, limit=most + 1 if most else None
            )
            listed = [job async for job in found]
            more = bool(most) and len(listed) > most
            listed = listed[:most] if most else listed
            if json:
                typer.echo("[" + ",\n".join(job.model_dump_json() for job in listed) + "]")
            else:
                show.jobs(listed, await _why_waiting(client, listed))
            if more:
                show.say(f"these are the newest {most}; --limit N or --all shows more")
        return 0

    _run(work())


def _state(text: str | None) -> str | None:
    """The state that is spelled so, in whatever case."""
    from ferryman.models import JobState

    for state in JobState:
        if text is None or text.lower() == state.lower():
            return None if text is None else state
    raise BadArgument(f"--state {text}: there are {', '.join(JobState)}")


async def _why_waiting(client: Client, listed: Sequence[JobDoc]) -> dict[int, str]:
    """Why queued jobs wait: of each user and service the oldest is asked for, others follow it."""
    oldest: dict[tuple[str, str], int] = {}
    reasons: dict[int, str] = {}
    for job in reversed(listed):
        if job.status == "Queued":
            first = oldest.setdefault((job.user_id, job.service), job.id)
            reasons[job.id] = f"behind job {first}"
    for job_id in oldest.values():
        reasons.pop(job_id)
    for job_id in list(oldest.values())[:_ASKED_WHY]:
        job = await client.status(job_id)
        reasons[job_id] = job.queue.reason if job.queue is not None else job.message
    return reasons


async def _fetch(client: Client, job_id: int, to: str, *, partial: bool, quiet: bool) -> Path:
    with show.bar("fetching", quiet=quiet) as told:
        done = await client.download(job_id, to, partial=partial, progress=told)
    if not quiet:
        show.say(f"saved {done.path} ({say_size(done.size)})")
    return done.path


async def _print_zip(client: Client, job_id: int, *, partial: bool, quiet: bool) -> None:
    """To stdout, once it has arrived whole."""
    with tempfile.TemporaryDirectory(prefix="ferryman-") as folder:
        with show.bar("fetching", quiet=quiet) as told:
            done = await client.download(job_id, f"{folder}/", partial=partial, progress=told)
        with done.path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _leftovers(server: Server, job_id: int) -> str:
    return f"what it left, logs included: {server.command(f'download {job_id} --partial')}"


def _conclude(job: JobDoc, server: Server, *, quiet: bool) -> None:
    """Say how it ended. Why it failed is an error, so --quiet does not silence it."""
    if job.status == "Completed":
        if not quiet:
            show.say(f"fetch the result: {server.command(f'download {job.id}')}")
        return
    reason = f" ({job.reason})" if job.reason else ""
    show.say(f"job {job.id} {job.status}{reason}: {job.message}")
    for line in show.tail(job):
        show.say(line)
    show.say(_leftovers(server, job.id))


def _run(work: Coroutine[Any, Any, int]) -> None:
    import asyncio

    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if code:
        raise typer.Exit(code)
