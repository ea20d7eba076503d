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
    from ferryman.models.jobs import AttemptDoc, FileDoc

STDOUT: Final = "-"
_HTTP_PATH: Final = re.compile(r"(\. What it left: |; )/download_partial.*")
LAST_OR_NUMBER: Final = re.compile(r"last|[0-9]+")
_FILES_PATH: Final = re.compile(r"; /api/v1/jobs/.*")
"""Ends of refusals, for those who use HTTP."""


@on_server
async def download(
    job_id: JobId,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", hidden=True)] = None,
    output: Output = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="What there is now, also of a job that is running or has failed."
        ),
    ] = False,
    attempt: Attempt = None,
    children: Annotated[
        bool,
        typer.Option("--children", help="Of a parent: what its children left, a folder for each."),
    ] = False,
    bundle: Annotated[bool, typer.Option("--bundle", help="What was uploaded.")] = False,
    only_new: Annotated[
        bool,
        typer.Option("--only-new", help="Without files of the bundle that are as they were sent."),
    ] = False,
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
    if files and (partial or children or bundle or only_new):
        raise BadArgument(
            "--partial, --children, --bundle, --only-new are of whole ZIPs: name no files"
        )
    if output == STDOUT and (json or not files):
        check_stdout(json=json)
    to = _place(files or [], output)
    what: dict[str, Any] = {"attempt": attempt}
    if not files:
        what |= {"partial": partial, "children": children, "bundle": bundle, "only_new": only_new}
    try:
        each: Sequence[str | None] = files or [None]
        done = [await fetch(client, job_id, to, file, quiet=quiet, **what) for file in each]
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
    if json:
        show.print_documents([_about(job_id, one) for one in done])
    elif output != STDOUT:
        typer.echo("\n".join(str(one.path) for one in done))


def _place(files: Sequence[str], output: str | None) -> str:
    """Where to put them.

    Raises:
        BadArgument: they cannot all go there.
    """
    if len(files) < 2:
        return output or "."
    if len({file.rpartition("/")[2] for file in files}) < len(files):
        raise BadArgument("two of the files have one name: fetch each with an --output")
    if output == STDOUT:
        raise BadArgument("--output - takes one file")
    return f"{output or '.'}/"  # a folder, which is made


def check_stdout(*, json: bool) -> None:
    """Refuse to send a ZIP to a terminal, or where a document goes. Raises BadArgument."""
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
    client: Client, job_id: int, to: str, file: str | None = None, *, quiet: bool, **what: Any
) -> Downloaded:
    """Fetch the ZIP, or one file; to stdout once it has arrived whole.

    Args:
        what: as of ``Client.download`` or ``Client.fetch``.
    """
    with tempfile.TemporaryDirectory(prefix="ferryman-") as folder:
        place = f"{folder}/" if to == STDOUT else to
        with show.progress_bar("fetching", quiet=quiet) as progress:
            if file is None:
                done = await client.download(job_id, place, progress=progress, **what)
            else:
                done = await client.fetch(job_id, file, place, progress=progress, **what)
        if to == STDOUT:
            with done.path.open("rb") as whole:
                shutil.copyfileobj(whole, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        elif not quiet:
            show.print_message(f"saved {done.path} ({say_size(done.size)})")
    return done


def _about(job_id: int, done: Downloaded) -> dict[str, str | int]:
    """A download, as a document."""
    return {"job_id": job_id, "path": str(done.path), "size": done.size, "sha256": done.sha256}


def partial_hint(server: Server, job_id: int, what: str = "what it left") -> str:
    return f"{what}, logs included: {server.command(f'download {job_id} --partial')}"


@on_server
async def files(
    job_id: JobId, attempt: Attempt = None, json: Json = False, *, server: Server, client: Client
) -> None:
    """List the files of a job, while it runs, too.

    `ferryman download ID FILE` fetches one of them.
    """
    try:
        found = [one async for one in client.files(job_id, attempt=attempt)]
    except (NoResult, NotReady) as problem:
        raise explained(problem, server, job_id, attempt) from None
    heads = ("PATH", "SIZE", "TYPE", "CHANGED")
    show.emit_list(found, heads, _file, drop=("TYPE", "CHANGED"), json=json)


def _file(one: FileDoc) -> tuple[str, ...]:
    size = say_size(one.size) if sys.stdout.isatty() else str(one.size)
    return one.path, size, one.type, show.local(one.modified_at) if one.modified_at else ""


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
