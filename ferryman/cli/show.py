"""Output for people: messages on stderr, documents, lists and tables on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from ferryman.clock import wall_clock
from ferryman.units import say_about, say_duration, say_size

if TYPE_CHECKING:
    from ferryman.models.events import EventDoc
    from ferryman.models.jobs import AttemptDoc, JobDoc, QueueInfo
    from ferryman.upload import ProgressCallback

T = TypeVar("T")
_MIN_FOR_BAR: Final = 1 << 20
"""Bytes; a smaller transfer is over before a bar is seen."""


def print_message(text: str) -> None:
    """A message."""
    typer.echo(printable(text), err=True)


def print_error(text: str) -> None:
    """An error, on one line where its text is one."""
    print_message(f"ferryman: {text}")


def printable(text: str) -> str:
    """``text`` with everything that could control a terminal written as an escape."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def since(start: datetime, end: datetime) -> float:
    """Seconds between two times; never negative."""
    return max(0.0, (end - start).total_seconds())


def local(at: datetime) -> str:
    """In local time, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


_OF_RUN_SH: Final = ("job.notice", "job.warning", "job.error")


def event_line(event: EventDoc, start: datetime) -> str:
    """``+0.25s  Running  run.sh started``: since the job was accepted."""
    passed = f"+{since(start, event.at):.2f}s"
    attempt = f"(attempt {event.attempt}) " if event.attempt > 1 else ""
    of_run_sh = event.source or event.event in _OF_RUN_SH
    own = event.fields.items() if of_run_sh else ()
    message = " ".join((event.message + "".join(f" {n}={value}" for n, value in own)).split())
    what = event.status if is_move(event) else event.event.removeprefix("job.")
    return f"{passed:>9}  {what:<10}  {attempt}{message}".rstrip()


def is_move(event: EventDoc) -> bool:
    """Whether it is about a state, and not about something that happened in it."""
    return event.before is not None or event.event in ("", f"job.{event.status.lower()}")


def waiting_line(why: str) -> str:
    """A line in the same format for the reason why a job waits."""
    return f"{'':>9}  {'waiting':<10}  {' '.join(why.split())}"


def status_line(job: JobDoc) -> str:
    """What a job does now, on one line."""
    words = [str(job.status)]
    if job.progress is not None:
        words.append(_progress(job))
    if job.queue is not None:
        words.append(_waits(job.queue))
    return "  ".join(words)


def _waits(queue: QueueInfo) -> str:
    """Why a job waits, and about how long it will."""
    if queue.expected_at is None:
        return queue.reason
    return f"{queue.reason}; starts in about {say_about(since(wall_clock(), queue.expected_at))}"


def _progress(job: JobDoc) -> str:
    assert job.progress is not None
    total = f" of {job.progress.total:g}" if job.progress.total is not None else ""
    return f"{job.progress.current:g}{total}"


def details(job: JobDoc) -> Iterator[str]:
    """A job, in a few lines."""
    reason = f" ({job.reason})" if job.reason else ""
    yield f"job {job.id}: {job.status}{reason}"
    if job.message:
        yield f"  {job.message}"
    named = f', named "{job.name}"' if job.name else ""
    tagged = f", tagged {', '.join(job.tags)}" if job.tags else ""
    yield f"  user {job.user_id}, service {job.service}{named}{tagged}"
    if job.queue is not None:
        yield f"  waiting at position {job.queue.position}: {_waits(job.queue)}"
    if job.attempt:
        where = f" on {job.agent}" if job.agent else ""
        yield f"  attempt {job.attempt}{where}"
    if job.cancel_requested_at and not job.ended:
        yield f"  cancel asked for {local(job.cancel_requested_at)}, not confirmed by the agent yet"
    if job.progress is not None and job.status != "Completed":  # it is full then
        yield f"  progress {_progress(job)}"
    for name, value in job.output.items():
        yield f"  output {name}: {value_text(value)}"
    yield f"  accepted {local(job.created_at)}"
    if job.started_at:
        yield f"  started  {local(job.started_at)}"
    if job.ended_at:
        took = (
            f", after {say_duration(since(job.started_at, job.ended_at))}" if job.started_at else ""
        )
        yield f"  ended    {local(job.ended_at)}{took}"
    if job.expires_at:
        yield f"  kept until {local(job.expires_at)}"
    if job.exit_code is not None:
        yield f"  exit code {job.exit_code}"
    if job.usage is not None:
        yield "  used " + ", ".join(usage(job))
    for warning in job.warnings:
        yield f"  warning: {warning}"


def value_text(value: Any) -> str:
    """An output value on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def usage(job: JobDoc) -> Iterator[str]:
    """What the job used, as phrases such as ``2s CPU``."""
    if job.usage is None:
        return
    yield f"{say_duration(job.usage.wall_s)} wall time"
    if job.usage.cpu_s is not None:
        yield f"{say_duration(job.usage.cpu_s)} CPU"
    if job.usage.peak_memory_bytes is not None:
        yield f"{say_size(job.usage.peak_memory_bytes)} memory"


def stderr_lines(job: JobDoc) -> Iterator[str]:
    """The last lines of stderr, if there are any."""
    lines = job.stderr_tail.rstrip().splitlines()
    if lines:
        yield "last lines of stderr:"
        yield from (f"  | {line}" for line in lines)


def print_jobs(listed: Iterable[JobDoc]) -> None:
    """A table on a terminal, tab-separated lines elsewhere.

    A child is shown by its name in its batch; of a job that waits, why it does.
    """
    heads = ("ID", "STATUS", "USER", "SERVICE", "ACCEPTED", "NAME", "MESSAGE")
    rows = [
        (
            str(job.id),
            str(job.status),
            job.user_id,
            job.service,
            local(job.created_at),
            job.child_name or job.name or "",
            job.message if job.queue is None else _waits(job.queue),
        )
        for job in listed
    ]
    print_table(heads, rows, drop=("NAME", "ACCEPTED", "SERVICE", "USER"))


def print_attempts(attempts: Iterable[AttemptDoc]) -> None:
    """A table on a terminal, tab-separated lines elsewhere."""
    heads = ("ATTEMPT", "STATUS", "AGENT", "STARTED", "TOOK", "EXIT", "REASON")
    rows = [
        (
            str(one.number),
            str(one.status),
            one.agent,
            local(one.started_at) if one.started_at else "",
            say_duration(since(one.started_at, one.ended_at))
            if one.started_at and one.ended_at
            else "",
            "" if one.exit_code is None else str(one.exit_code),
            str(one.reason or ""),
        )
        for one in attempts
    ]
    print_table(heads, rows, drop=("STARTED", "AGENT"))


def print_table(
    heads: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    drop: Sequence[str],
    *,
    cut_last: bool = True,
) -> None:
    """A table on a terminal, tab-separated lines elsewhere.

    Args:
        drop: columns that a narrow terminal does without, the first one first.
        cut_last: the last column is text for people, which may be cut.
    """
    if sys.stdout.isatty():
        text = [tuple(map(printable, row)) for row in rows]
        draw(heads, text, drop, cut_last=cut_last)
        return
    for row in (heads, *rows):
        typer.echo("\t".join(printable(cell).replace("\t", " ").replace("\n", " ") for cell in row))


def emit(document: Any, text: str, *, json: bool, quiet: bool = False) -> None:
    """What was done: the document for programs, or a message."""
    if json:
        print_json(document)
    elif not quiet:
        print_message(text)


def emit_list(
    items: Sequence[T],
    heads: tuple[str, ...],
    row: Callable[[T], tuple[str, ...]],
    *,
    drop: Sequence[str],
    json: bool,
    none: str = "",
    cut_last: bool = True,
) -> None:
    """Documents for programs, or a table; ``none`` where there are none."""
    if json:
        print_json_list(items)
    elif not items and none:
        print_message(none)
    else:
        print_table(heads, [row(one) for one in items], drop, cut_last=cut_last)


def print_lines(lines: Iterable[str]) -> None:
    """Lines on stdout."""
    for line in lines:
        typer.echo(printable(line))


def print_json(model: Any) -> None:
    """JSON on stdout."""
    typer.echo(model.model_dump_json(indent=2))


def print_one_or_list(models: Sequence[Any]) -> None:
    """JSON on stdout: the document of one, a list of several."""
    if len(models) == 1:
        print_json(models[0])
    else:
        print_json_list(models)


def print_documents(documents: Sequence[Mapping[str, Any]]) -> None:
    """JSON on stdout of what is no document of the API: that of one, a list of several."""
    typer.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))


def print_json_list(models: Iterable[Any]) -> None:
    """A list in JSON on stdout, an item a line."""
    typer.echo("[" + ",\n".join(model.model_dump_json() for model in models) + "]")


@contextmanager
def progress_bar(what: str, *, quiet: bool) -> Iterator[ProgressCallback | None]:
    """A progress bar on a terminal, for large transfers."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, visible=False)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=total > _MIN_FOR_BAR)

        yield on_progress


@contextmanager
def live_status(*, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A line on a terminal that shows what a job does now, and for how long.

    Yields:
        Two functions, which take a text: one prints a line above that line, one changes it.
    """
    if quiet or not sys.stderr.isatty():
        yield (lambda _: None) if quiet else print_message, lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        state = ""

        def add_line(text: str) -> None:
            progress.console.print(Text(printable(text)), soft_wrap=True)

        def set_status(text: str) -> None:
            nonlocal state
            if text.partition("  ")[0] != state:
                state = text.partition("  ")[0]
                progress.reset(task)
            progress.update(task, description=printable(text), refresh=True)

        yield add_line, set_status


_STYLE: Final = {
    "Running": "cyan",
    "Completed": "green",
    "Failed": "red",
    "Cancelled": "yellow",
    "Unknown": "magenta",
    "active": "green",
    "draining": "yellow",
    "lost": "red",
}
_MIN_MESSAGE_WIDTH: Final = 12
"""Columns; a table drops columns before its messages get narrower."""


def draw(
    heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], drop: Sequence[str], *, cut_last: bool
) -> None:
    """Print it, as wide as the terminal.

    Args:
        rows: what a terminal may be sent.
        drop, cut_last: as of ``show.print_table``.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    last = len(heads) - 1
    kept = [at for at in range(last) if heads[at] not in drop]
    # What one would type stays whole, even where the terminal has to break the line.
    rest = 1 if cut_last else widths[last]
    console.width = max(console.width, sum(widths[at] + 2 for at in kept) + rest)
    least = min(widths[last], _MIN_MESSAGE_WIDTH) if cut_last else widths[last]
    shown = list(range(len(heads)))
    for name in drop:
        # On a narrow terminal columns are dropped, then the last is cut; numbers are always whole.
        needed = sum(widths[at] + 2 for at in shown[:-1]) + least
        if needed > console.width:
            shown.remove(heads.index(name))
    table = Table(box=None, pad_edge=False, expand=True)
    for at in shown:
        table.add_column(
            heads[at],
            overflow="ellipsis",
            no_wrap=True,
            ratio=1 if at == last else None,
            min_width=widths[at] if at in kept else None,
        )
    for row in rows:
        style = _STYLE.get(row[1], "")
        table.add_row(*(Text(row[at], style if at == 1 else "") for at in shown))
    console.print(table)
