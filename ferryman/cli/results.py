"""``ferryman download``, thin over the SDK, and what ``submit`` fetches."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ferryman.cli import show
from ferryman.cli.options import Attempt, JobId, Json, Output, Quiet, Server, on_server, run
from ferryman.errors import BadArgument, NoResult, NotReady
from ferryman.units import say_size

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.download import Downloaded

STDOUT: Final = "-"
_HTTP_PATH: Final = re.compile(r"(\. What it left: |; )/download_partial.*")
"""At the end of a refusal, for those who use HTTP."""


@on_server
def download(
    job_id: JobId,
    output: Output = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="What there is now, also of a job that is running or has failed.",
        ),
    ] = False,
    attempt: Attempt = None,
    children: Annotated[
        bool,
        typer.Option("--children", help="Of a parent: what its children left, a folder for each."),
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Fetch the result, a ZIP; print the file's name.

    The file appears when it is complete.

    With --output - the ZIP itself goes to stdout.
    """

    if output == STDOUT:
        check_stdout(json=json)

    async def work() -> int:
        async with server.client() as client:
            try:
                if output == STDOUT:
                    await print_zip(client, job_id, partial, attempt, children, quiet=quiet)
                else:
                    to = output or "."
                    done = await fetch(client, job_id, to, partial, attempt, children, quiet=quiet)
                    if json:
                        about = {"path": str(done.path), "size": done.size, "sha256": done.sha256}
                        show.print_documents([{"job_id": job_id, **about}])
                    else:
                        typer.echo(done.path)
            except (NoResult, NotReady) as problem:
                raise explained(problem, server, job_id, attempt) from None
            return 0

    run(work())


def check_stdout(*, json: bool) -> None:
    """Refuse to send a ZIP to a terminal, or where a document goes.

    Raises:
        BadArgument
    """
    if json:
        raise BadArgument("--output - sends the ZIP to stdout, --json a document: choose one")
    if sys.stdout.isatty():
        raise BadArgument("a ZIP cannot be shown on a terminal: send stdout to a file or a program")


def explained(
    problem: NoResult | NotReady, server: Server, job_id: int, attempt: int | None
) -> NoResult | NotReady:
    """Why there is no result or log, with the command that shows what there is."""
    text = _HTTP_PATH.sub("", str(problem))
    better = type(problem)(problem.status, problem.code, text, request_id=problem.request_id)
    if problem.code == "no_attempt":
        better.add_note(f"its state: {server.command(f'status {job_id}')}")
    elif isinstance(problem, NotReady):
        better.add_note(partial_hint(server, job_id, "what there is now"))
    elif problem.status == 409 and attempt is None:
        better.add_note(partial_hint(server, job_id))
    return better


async def fetch(
    client: Client,
    job_id: int,
    to: str,
    partial: bool = False,
    attempt: int | None = None,
    children: bool = False,
    *,
    quiet: bool,
) -> Downloaded:
    with show.progress_bar("fetching", quiet=quiet) as on_progress:
        done = await client.download(
            job_id,
            to,
            partial=partial,
            attempt=attempt,
            children=children,
            progress=on_progress,
        )
    if not quiet:
        show.print_message(f"saved {done.path} ({say_size(done.size)})")
    return done


async def print_zip(
    client: Client,
    job_id: int,
    partial: bool = False,
    attempt: int | None = None,
    children: bool = False,
    *,
    quiet: bool,
) -> None:
    """To stdout, once it has arrived whole."""
    with tempfile.TemporaryDirectory(prefix="ferryman-") as folder:
        with show.progress_bar("fetching", quiet=quiet) as on_progress:
            done = await client.download(
                job_id,
                f"{folder}/",
                partial=partial,
                attempt=attempt,
                children=children,
                progress=on_progress,
            )
        with done.path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def partial_hint(server: Server, job_id: int, what: str = "what it left") -> str:
    return f"{what}, logs included: {server.command(f'download {job_id} --partial')}"
