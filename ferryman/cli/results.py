"""``ferryman download``, ``files`` and ``logs``: what a job left, thin over the SDK."""

from __future__ import annotations

import codecs
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman.cli import show
from ferryman.cli.options import (
    Attempt,
    JobId,
    JobIds,
    Json,
    Output,
    Quiet,
    Server,
    on_server,
    whole,
)
from ferryman.errors import BadArgument, NoResult, NotFound, NotReady
from ferryman.units import say_size

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.download import Downloaded
    from ferryman.follow import Stream
    from ferryman.models.jobs import AttemptDoc
    from ferryman.upload import ProgressCallback

STDOUT: Final = "-"
_HTTP_PATH: Final = re.compile(r"(\. What it left: |; )/download_partial.*")
LAST_OR_NUMBER: Final = re.compile(r"last|[0-9]+")
_FILES_PATH: Final = re.compile(r"; /api/v1/jobs/.*")
"""Ends of refusals, for those who use HTTP."""


@on_server
async def download(
    job_id: JobId,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", hidden=True),
    ] = None,
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
    bundle: Annotated[bool, typer.Option("--bundle", help="What was uploaded.")] = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
    client: Client,
) -> None:
    """Fetch the result, a ZIP, or some of its files.

    With a FILE, as `ferryman files` lists it, or several, only these. A file appears when it is
    complete; then its name is printed.

    With --output - the ZIP itself, or the one file that is named, goes to stdout.
    """
    if files and (partial or children or bundle):
        raise BadArgument("--partial, --children, --bundle are of whole ZIPs: name no files")
    if output == STDOUT and (json or not files):
        check_stdout(json=json)
    try:
        if files:
            done = await fetch_files(client, job_id, files, output, attempt, quiet=quiet)
            if json:
                show.print_documents([about(job_id, one) for one in done])
            elif output != STDOUT:
                typer.echo("\n".join(str(one.path) for one in done))
        elif output == STDOUT:
            await print_zip(client, job_id, partial, attempt, children, bundle, quiet=quiet)
        else:
            to = output or "."
            whole = await fetch(client, job_id, to, partial, attempt, children, bundle, quiet=quiet)
            if json:
                show.print_documents([about(job_id, whole)])
            else:
                typer.echo(whole.path)
    except (NoResult, NotReady) as problem:
        raise explained(problem, server, job_id, attempt) from None
    except NotFound as problem:
        if problem.code != "file_not_found":
            raise
        text = _FILES_PATH.sub("", str(problem))
        better = NotFound(404, problem.code, text, request_id=problem.request_id)
        if files and all(LAST_OR_NUMBER.fullmatch(one) for one in files):
            better.add_note(f"one job at a time: {server.command(f'download {files[0]}')}")
        better.add_note(f"its files: {server.command(f'files {job_id}')}")
        raise better from None


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
    bundle: bool = False,
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
            bundle=bundle,
            progress=on_progress,
        )
    if not quiet:
        show.print_message(f"saved {done.path} ({say_size(done.size)})")
    return done


def about(job_id: int, done: Downloaded) -> dict[str, str | int]:
    """A download, as a document."""
    return {"job_id": job_id, "path": str(done.path), "size": done.size, "sha256": done.sha256}


async def fetch_files(
    client: Client,
    job_id: int,
    files: Sequence[str],
    output: str | None,
    attempt: int | None,
    *,
    quiet: bool,
) -> list[Downloaded]:
    """Single files, each below its own name.

    Raises:
        BadArgument: they cannot all go there.
    """
    names = [file.rpartition("/")[2] for file in files]
    to_stdout = output == STDOUT
    if len(files) > 1:
        if len(set(names)) < len(names):
            raise BadArgument("two of the files have one name: fetch each with an --output")
        if to_stdout:
            raise BadArgument("--output - takes one file")
    to = output or "."
    if len(files) > 1:
        to += "/"  # a folder, which is made
    fetched = []
    for file in files:
        with show.progress_bar("fetching", quiet=quiet) as on_progress:
            if to_stdout:
                done = await _print_file(client, job_id, file, attempt, on_progress)
            else:
                done = await client.fetch(job_id, file, to, attempt=attempt, progress=on_progress)
        fetched.append(done)
        if not to_stdout and not quiet:
            show.print_message(f"saved {done.path} ({say_size(done.size)})")
    return fetched


async def _print_file(
    client: Client,
    job_id: int,
    file: str,
    attempt: int | None,
    on_progress: ProgressCallback | None,
) -> Downloaded:
    """To stdout, once it has arrived whole."""
    with tempfile.TemporaryFile() as whole:
        done = await client.fetch(job_id, file, whole, attempt=attempt, progress=on_progress)
        whole.seek(0)
        shutil.copyfileobj(whole, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    return done


async def print_zip(
    client: Client,
    job_id: int,
    partial: bool = False,
    attempt: int | None = None,
    children: bool = False,
    bundle: bool = False,
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
                bundle=bundle,
                progress=on_progress,
            )
        with done.path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def partial_hint(server: Server, job_id: int, what: str = "what it left") -> str:
    return f"{what}, logs included: {server.command(f'download {job_id} --partial')}"


@on_server
async def files(
    job_id: JobId,
    attempt: Attempt = None,
    json: Json = False,
    *,
    server: Server,
    client: Client,
) -> None:
    """List the files of a job, while it runs, too.

    `ferryman download ID FILE` fetches one of them.
    """
    try:
        found = [one async for one in client.files(job_id, attempt=attempt)]
    except (NoResult, NotReady) as problem:
        raise explained(problem, server, job_id, attempt) from None
    if json:
        show.print_json_list(found)
        return
    to_people = sys.stdout.isatty()
    rows = [
        (
            one.path,
            say_size(one.size) if to_people else str(one.size),
            one.type,
            show.local(one.modified_at) if one.modified_at else "",
        )
        for one in found
    ]
    show.print_table(("PATH", "SIZE", "TYPE", "CHANGED"), rows, drop=("TYPE", "CHANGED"))


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
    from ferryman.follow import latest_with_logs

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
