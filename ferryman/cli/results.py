"""``ferryman download``, thin over the SDK, and what ``submit`` fetches."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ferryman.cli import show
from ferryman.cli.exits import exit_code_for
from ferryman.cli.options import JobId, Output, Quiet, Server, Token, TokenFile, Url, run
from ferryman.defaults import DEFAULT_URL
from ferryman.errors import BadArgument, NoResult
from ferryman.units import say_size

if TYPE_CHECKING:
    from ferryman.client import Client

STDOUT: Final = "-"


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
    server = Server.from_options(url, token, token_file)

    if output == STDOUT and sys.stdout.isatty():
        raise BadArgument("a ZIP would confuse your terminal: send stdout to a file or a program")

    async def work() -> int:
        async with server.client() as client:
            try:
                if output == STDOUT:
                    await _print_zip(client, job_id, partial=partial, quiet=quiet)
                else:
                    to = output or "."
                    typer.echo(await fetch(client, job_id, to, partial=partial, quiet=quiet))
            except NoResult as problem:
                # The server ends with a path, which is for those who use HTTP.
                show.print_error(str(problem).partition(". What it left: ")[0])
                if problem.status == 409:
                    show.print_message(partial_hint(server, job_id))
                return exit_code_for(problem)
            return 0

    run(work())


async def fetch(client: Client, job_id: int, to: str, *, partial: bool, quiet: bool) -> Path:
    with show.progress_bar("fetching", quiet=quiet) as on_progress:
        done = await client.download(job_id, to, partial=partial, progress=on_progress)
    if not quiet:
        show.print_message(f"saved {done.path} ({say_size(done.size)})")
    return done.path


async def _print_zip(client: Client, job_id: int, *, partial: bool, quiet: bool) -> None:
    """To stdout, once it has arrived whole."""
    with tempfile.TemporaryDirectory(prefix="ferryman-") as folder:
        with show.progress_bar("fetching", quiet=quiet) as on_progress:
            done = await client.download(
                job_id, f"{folder}/", partial=partial, progress=on_progress
            )
        with done.path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def partial_hint(server: Server, job_id: int) -> str:
    return f"what it left, logs included: {server.command(f'download {job_id} --partial')}"
