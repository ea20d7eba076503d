"""``ferryman attempts`` and ``ferryman logs``, thin over the SDK."""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ferryman.cli import show
from ferryman.cli.options import Attempt, JobId, Json, Quiet, Server, on_server, run, whole
from ferryman.cli.results import explained, partial_hint
from ferryman.errors import BadArgument, NoResult, NotReady

if TYPE_CHECKING:
    from ferryman.logs import Stream
    from ferryman.models import AttemptDoc


@on_server
def attempts(
    job_id: JobId,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """List the attempts of a job.

    When each one ran, where, and how it ended. `ferryman logs` and `ferryman download` with
    --attempt show what one left.
    """

    async def work() -> int:
        async with server.client() as client:
            attempts = await client.attempts(job_id)
        if json:
            show.print_json_list(attempts)
        elif attempts:
            show.print_attempts(attempts)
        else:
            how = server.command(f"status {job_id}")
            show.print_message(f"no agent has taken job {job_id}; its state: {how}")
        return 0

    run(work())


@on_server
def logs(
    job_id: JobId,
    attempt: Attempt = None,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="What it wrote to stderr, not to stdout.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what it writes, until it has ended.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", parser=whole(0), metavar="BYTES", help="With --follow: begin so far back."
        ),
    ] = None,
    quiet: Quiet = False,
    *,
    server: Server,
) -> None:
    """Print what a job writes, while it runs, too.

    To stdout, or with --stderr to stderr. Without --attempt: of the latest attempt that has logs.
    """
    from ferryman.logs import latest_with_logs

    if tail is not None and not follow:
        raise BadArgument("--tail says where --follow begins")
    if follow:
        _follow(server, job_id, attempt, "stderr" if stderr else "stdout", tail)
        return

    async def work() -> int:
        number = attempt
        async with server.client() as client:
            try:
                if number is None:
                    attempts = await client.attempts(job_id)
                    chosen = latest_with_logs(attempts)
                    if chosen is not None:
                        number = chosen.number
                        if chosen is not attempts[-1] and not quiet:
                            _say_which(server, job_id, number, attempts[-1])
                text = await client.log(job_id, number, "stderr" if stderr else "stdout")
            except (NoResult, NotReady) as problem:
                raise explained(problem, server, job_id, number) from None
        # Bytes, because typer takes escape sequences out of text that goes to a file.
        typer.echo(show.printable(text) if sys.stdout.isatty() else text.encode(), nl=False)
        return 0

    run(work())


def _follow(
    server: Server, job_id: int, attempt: int | None, stream: Stream, tail: int | None
) -> None:
    async def work() -> int:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async with server.client() as client:
            try:
                async for chunk in client.follow_log(job_id, attempt, stream, tail=tail):
                    text = show.printable(decoder.decode(chunk))
                    typer.echo(text if sys.stdout.isatty() else chunk, nl=False)
            except NoResult as problem:
                raise explained(problem, server, job_id, attempt) from None
        return 0

    run(work())


def _say_which(server: Server, job_id: int, number: int, latest: AttemptDoc) -> None:
    """Why the log is not that of the latest attempt."""
    if latest.ended_at is None:
        show.print_message(f"this is attempt {number}; attempt {latest.number} has not ended")
        show.print_message(partial_hint(server, job_id, "what there is now"))
    else:
        why = f"left no logs: {latest.message}"
        show.print_message(f"this is attempt {number}; attempt {latest.number} {why}")
