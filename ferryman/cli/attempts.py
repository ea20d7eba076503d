"""``ferryman logs``, thin over the SDK."""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferryman.cli import show
from ferryman.cli.options import Attempt, JobIds, Json, Quiet, Server, on_server, whole
from ferryman.cli.results import explained, partial_hint
from ferryman.errors import BadArgument, NoResult, NotReady

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.logs import Stream
    from ferryman.models import AttemptDoc


@on_server
async def logs(
    job_ids: JobIds,
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
    json: Json = False,
    *,
    server: Server,
    client: Client,
) -> None:
    """Print what jobs write, while they run, too.

    To stdout, or with --stderr to stderr. Without --attempt: of the latest attempt that has logs.
    """
    if tail is not None and not follow:
        raise BadArgument("--tail says where --follow begins")
    if follow and (json or len(job_ids) > 1):
        raise BadArgument("--follow is for a single job, and prints bytes as they come: no --json")
    stream: Stream = "stderr" if stderr else "stdout"
    if follow:
        await _follow(client, server, job_ids[0], attempt, stream, tail)
        return
    logs = [
        await _log(client, server, job_id, attempt, stream, quiet=quiet or json)
        for job_id in job_ids
    ]
    if json:
        show.print_documents(logs)
        return
    for log in logs:
        if len(logs) > 1 and not quiet:
            show.print_message(f"==> job {log['job_id']}, {stream} <==")
        text = log["text"]
        # Bytes, because typer takes escape sequences out of text that goes to a file.
        typer.echo(show.printable(text) if sys.stdout.isatty() else text.encode(), nl=False)


async def _log(
    client: Client, server: Server, job_id: int, attempt: int | None, stream: Stream, *, quiet: bool
) -> dict[str, Any]:
    from ferryman.logs import latest_with_logs

    try:
        if attempt is None:
            attempts = (await client.status(job_id)).attempts or []
            chosen = latest_with_logs(attempts)
            if chosen is not None:
                attempt = chosen.number
                if chosen is not attempts[-1] and not quiet:
                    _say_which(server, job_id, attempt, attempts[-1])
        text = await client.log(job_id, attempt, stream)
    except (NoResult, NotReady) as problem:
        raise explained(problem, server, job_id, attempt) from None
    return {"job_id": job_id, "attempt": attempt, "stream": stream, "text": text}


async def _follow(
    client: Client,
    server: Server,
    job_id: int,
    attempt: int | None,
    stream: Stream,
    tail: int | None,
) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        async for chunk in client.follow_log(job_id, attempt, stream, tail=tail):
            text = show.printable(decoder.decode(chunk))
            typer.echo(text if sys.stdout.isatty() else chunk, nl=False)
    except NoResult as problem:
        raise explained(problem, server, job_id, attempt) from None


def _say_which(server: Server, job_id: int, number: int, latest: AttemptDoc) -> None:
    """Why the log is not that of the latest attempt."""
    if latest.ended_at is None:
        show.print_message(f"this is attempt {number}; attempt {latest.number} has not ended")
        show.print_message(partial_hint(server, job_id, "what there is now"))
    else:
        why = f"left no logs: {latest.message}"
        show.print_message(f"this is attempt {number}; attempt {latest.number} {why}")
