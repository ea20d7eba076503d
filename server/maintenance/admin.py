"""``ferryman admin verify`` on a server's data folder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Final

import typer

from server.maintenance.common import FAILED, AsJson, Config, DataDir, problems, server_paths
from server.maintenance.verify import Verified
from server.maintenance.verify import verify as look_at_everything
from shared.clock import SECOND, Clock, RealClock
from shared.units.durations import parse_duration

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Rare work on a server's data folder.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PROGRESS_EVERY_S: Final = 1.0


@app.callback()
def _group() -> None:
    """Keep ``verify`` a command of a group."""


@app.command()
def verify(
    config: Config = None,
    data_dir: DataDir = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Repair what can be repaired; the server must not run."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare sizes of files, do not read them.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DURATION", help="Only results that are no older: 7d."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the database, and every stored file against its row and its digest.

    Works on the data folder, beside a running server too; with --repair the server must be stopped.

    Exit codes: 0 all is well, or was repaired; 1 something is wrong; 2 settings; 73 a server runs,
    and --repair was given; 74 the database cannot be used.
    """
    clock = RealClock()
    with problems():
        folder, database = server_paths(config, data_dir)
        begin = None if since is None else clock.now() - round(parse_duration(since) * SECOND)
        done = look_at_everything(
            folder,
            database,
            repair=repair,
            digests=not quick,
            since=begin,
            clock=clock,
            progress=_Progress(clock),
        )
    if as_json:
        typer.echo(json.dumps(asdict(done) | {"checked": dict(done.checked)}))
    else:
        _print_verified(done)
    if done.left:
        raise typer.Exit(FAILED)


class _Progress:
    """A line on a terminal, now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._shown_at = clock, clock.monotonic()

    def __call__(self, what: str, count: int) -> None:
        now = self._clock.monotonic()
        if sys.stderr.isatty() and now - self._shown_at >= _PROGRESS_EVERY_S:
            self._shown_at = now
            sys.stderr.write(f"\r\x1b[Kchecked {count:,} {what}")


def _print_verified(done: Verified) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    for one in done.findings:
        typer.echo(f"{one.about}: {one.message}" + (f" [{one.repaired}]" if one.repaired else ""))
    more = done.left + done.repaired - len(done.findings)
    if more:
        typer.echo(f"and {more:,} more")
    checked = ", ".join(f"{count:,} {what}" for what, count in sorted(done.checked.items()))
    sums = f"{done.left:,} wrong" + (f", {done.repaired:,} repaired" if done.repaired else "")
    typer.echo(f"checked {checked or 'nothing'}: {sums if done.findings else 'all is well'}")
