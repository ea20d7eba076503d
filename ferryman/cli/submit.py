"""``ferryman submit``, thin over the SDK: which files it sends, and what is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from ferryman.bundle import BundleFile, Files, gather
from ferryman.cli import show
from ferryman.cli.exits import exit_code_of_job
from ferryman.cli.options import (
    CancelOnInterrupt,
    Json,
    Output,
    Quiet,
    Server,
    on_server,
    run,
    with_options,
)
from ferryman.cli.results import STDOUT, check_stdout, fetch
from ferryman.ignore import Ignore, Pattern, ignore_for
from ferryman.units import say_count, say_size

Service: TypeAlias = Annotated[
    str,
    typer.Option(
        *("--service", "-s"), metavar="NAME", envvar="FERRYMAN_SERVICE", help="Which kind of work."
    ),
]
User: TypeAlias = Annotated[
    str | None,
    typer.Option(
        *("--user", "-u"),
        metavar="NAME",
        envvar="FERRYMAN_USER",
        help="Whose job it is; default: the token's, or else your login name.",
    ),
]
Tag: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="For `list --tag`; may be repeated."),
]
FIELDS: Final = {
    "timeout": (
        "DURATION",
        "Wall time of an attempt, such as 1h30m; default and most: the service's. 0s: no limit, "
        "where the service has none.",
    ),
    "memory": ("SIZE", "Memory, such as 512MB."),
    "cpus": ("NUMBER", "CPUs, such as 2 or 0.5."),
    "pids": ("NUMBER", "Processes and threads."),
    "disk": ("SIZE", "Disk, such as 1GiB."),
    "queue_timeout": ("DURATION", "Longest wait for a start."),
    "heartbeat_timeout": ("DURATION", "Stop it when it says nothing for so long."),
    "expires_after": ("DURATION", "How long it is kept after its end."),
    "not_before": ("TIME", "When it may start: 2030-01-31T09:00:00Z, or 'in 2h'."),
    "priority": ("NUMBER", "-100 to 100, among your own jobs; 0 is usual."),
    "meta": ("JSON", "A JSON object, shown with the job."),
    "retries": ("NUMBER", "How often a failure is tried again; default: the service's, usually 0."),
    "retry_delays": ("LIST", "Before each retry, such as 10s,1m; the last repeats."),
    "backoff": ("KIND", "constant, linear, exponential or exponential_jitter delays."),
    "retry_delay": ("DURATION", "The base of --backoff."),
    "max_retry_delay": ("DURATION", "The longest delay of --backoff."),
    "retry_on": (
        "LIST",
        "Reasons and exit codes that are retried, such as timeout,exit:3; default: the service's, "
        "which are exit_code,timeout,heartbeat_timeout unless its operator says others.",
    ),
    "no_retry_on": ("LIST", "Those that are not retried all the same."),
    "array": ("INDICES", "A child for each, as in 0-99 or 1,5,9-12."),
    "array_file": ("FILE", "A child for each line of this file of the bundle."),
    "max_parallel": ("NUMBER", "Most children under way at once."),
    "batch_policy": ("POLICY", "wait_all, or fail_fast: the first failure ends the rest."),
    "after": ("IDS", "Start when these jobs have completed: 17,18."),
    "inputs_from": ("IDS", "Likewise, with their result files below inputs/ID/."),
    "callback_url": ("URL", "Where the server posts a webhook when it has ended."),
    "outputs": ("PATTERNS", "What the result is to have, such as 'out/*.csv,best.pdb'."),
    "result_files": ("WHICH", "all, or changed: without the files that were sent."),
}
"""Fields of an upload that have an option of the same name: what is shown for its value, and its
help."""
_NUMBERS: Final = frozenset({"priority", "retries", "max_parallel"})


def fields(*names: str) -> dict[str, Any]:
    """The options of these fields, for :func:`ferryman.cli.options.with_options`."""
    found = {}
    for name in names:
        metavar, about = FIELDS[name]
        option = typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=about)
        found[name] = Annotated[(int if name in _NUMBERS else str) | None, option]
    return found


@on_server
@with_options(fields(*FIELDS))
def submit(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", hidden=True),  # the help would show a type of Python's
    ],
    service: Service,
    user: User = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="A name, shown in lists.")
    ] = None,
    tag: Tag = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            "-x",
            metavar="PATTERN",
            help="Leave out what fits, as in .gitignore: '*.tmp', 'build/'; may be repeated.",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything",
            help="Leave out nothing else: no version control, former results, .ferrymanignore.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print sizes and names of what would be sent.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Follow it to its end; the exit code is then the job's own."
        ),
    ] = False,
    cancel_on_interrupt: CancelOnInterrupt = False,
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
    *,
    server: Server,
    **wanted: Any,
) -> None:
    """Send a bundle; print the job's number.

    PATH is a folder (what is in it is sent), files (by base name), or one .zip, .tar or .tar.gz.
    There must be a run.sh. Of a folder, .git and the like, former results, and what its
    .ferrymanignore names are left out.

    Limits can only be lower than the service's. With --wait, states and times are printed
    on stderr, and the exit code is the job's own (timeout: 124, cancelled: 143). --output implies
    --wait and fetches the result of a job that completed.
    """
    import asyncio

    from ferryman.cli.follow import conclude, wait_for
    from ferryman.download import target_path

    if output == STDOUT:
        check_stdout(json=json)
    elif output is not None:
        target_path(output, "")  # fails now, not in an hour, if the folder cannot be made

    selection = select(paths, exclude or (), everything=everything)
    if dry_run:
        show_selection(selection, json=json)
        return
    if not (quiet or json):
        for line in selection.lines():
            show.print_message(line)

    async def work() -> int:
        async with server.client() as client:
            whose = await server.user_of(client, user)
            try:
                with show.progress_bar("sending", quiet=quiet) as on_progress:
                    accepted = await client.submit(
                        selection.files,
                        service=service,
                        user=whose,
                        name=name,
                        tags=tag or (),
                        idempotency_key=idempotency_key,
                        progress=on_progress,
                        **wanted,
                    )
            except asyncio.CancelledError:
                show.print_error("interrupted before the server had answered: there may be no job")
                raise
            following = wait or output is not None
            if output == STDOUT:
                show.print_message(f"job {accepted.id}")
            elif not json:
                # Alone on its line for scripts; a person would wonder what the number means.
                typer.echo(f"job {accepted.id}" if sys.stdout.isatty() else accepted.id)
            elif not following:
                typer.echo(dumps(asdict(accepted), indent=2))
            if not following:
                if not quiet:
                    for warning in () if json else accepted.warnings:
                        show.print_message(f"warning: {warning}")
                    show.print_message(
                        f"job {accepted.id} is accepted; follow it: "
                        + server.command(f"status {accepted.id} --wait")
                    )
                return 0
            (job,) = await wait_for(
                client, server, [accepted.id], quiet=quiet, cancel=cancel_on_interrupt
            )
            if json:
                show.print_json(job)
            elif not quiet:
                for warning in job.warnings:
                    show.print_message(f"warning: {warning}")
            if job.status == "Completed" and output is not None:
                await fetch(client, job.id, output, quiet=quiet)
            else:
                conclude(job, server, quiet=quiet)
            return exit_code_of_job(job)

    run(work())


_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Selection:
    """What is sent, and what of the folders is left out."""

    parts: Sequence[BundleFile]
    left_out: Sequence[str]

    @property
    def files(self) -> Files:
        """For :meth:`ferryman.Client.submit`."""
        if self.is_archive:
            assert isinstance(self.parts[0].source, Path)
            return self.parts[0].source
        return {part.name: part.source for part in self.parts}

    @property
    def is_archive(self) -> bool:
        return self.parts[0].field == "bundle"

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.size for part in self.parts)

    def summary(self) -> str:
        """``12 files (3.4 MiB)``."""
        what = self.parts[0].name if self.is_archive else say_count(len(self.parts), "file")
        return f"{what} ({say_size(self.size)})"

    def lines(self) -> list[str]:
        """What is sent, and what is not, for people."""
        lines = [f"sending {self.summary()}"]
        if self.left_out:
            named = ", ".join(self.left_out[:_MOST_NAMED])
            more = len(self.left_out) - _MOST_NAMED
            named += f" and {more} more" if more > 0 else ""
            lines.append(f"left out: {named} (--everything sends them)")
        return lines


def select(paths: Sequence[Path], exclude: Sequence[str], *, everything: bool) -> Selection:
    """The files of a bundle.

    Args:
        exclude: patterns, which hold for files that are named, too.
        everything: leave out only what ``exclude`` says.

    Raises:
        BadArgument, BadBundle
    """
    rules: list[Ignore] = []

    def leave_out(folder: Path) -> Ignore:
        rules.append(ignore_for(folder, exclude, everything=everything))
        return rules[-1]

    patterns = [one for text in exclude if (one := Pattern.parse(text, "--exclude"))]
    named = Ignore(patterns, usual=False)
    alone = len(paths) == 1
    kept = [path for path in paths if alone or path.is_dir() or not named(path.name, path, False)]
    parts = gather(kept, leave_out)
    return Selection(parts, [*named.left_out, *(name for one in rules for name in one.left_out)])


def show_selection(selection: Selection, *, json: bool) -> None:
    """All of it on stdout, for ``--dry-run``."""
    if json:
        files = [{"name": part.name, "size": part.size} for part in selection.parts]
        left_out = list(selection.left_out)
        show.print_documents([{"files": files, "size": selection.size, "left_out": left_out}])
        return
    for part in selection.parts:
        typer.echo(f"{part.size}\t{show.printable(part.name)}")
    for name in selection.left_out:
        show.print_message(f"left out: {name}")
    show.print_message(f"{selection.summary()} would be sent; nothing was")
