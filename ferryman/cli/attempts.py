"""``ferryman attempts`` and ``ferryman logs``, thin over the SDK."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ferryman.cli import show
from ferryman.cli.options import Attempt, JobId, Json, Quiet, Server, Token, TokenFile, Url, run
from ferryman.cli.results import explain, partial_hint
from ferryman.defaults import DEFAULT_URL
from ferryman.errors import NoResult, NotReady

if TYPE_CHECKING:
    from ferryman.models import AttemptDoc


def attempts(
    job_id: JobId,
    json: Json = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """List the attempts of a job.

    When each one ran, where, and how it ended. `ferryman logs` and `ferryman download` with
    --attempt show what one left.
    """
    server = Server.from_options(url, token, token_file)

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


def logs(
    job_id: JobId,
    attempt: Attempt = None,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="What it wrote to stderr, not to stdout.")
    ] = False,
    quiet: Quiet = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """Print what a job wrote to stdout or stderr.

    Without --attempt: of the latest attempt that has logs. An attempt has logs when it has ended.
    """
    from ferryman.logs import latest_with_logs

    server = Server.from_options(url, token, token_file)

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
                return explain(problem, server, job_id, number)
        # Bytes, because typer takes escape sequences out of text that goes to a file.
        typer.echo(show.printable(text) if sys.stdout.isatty() else text.encode(), nl=False)
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
