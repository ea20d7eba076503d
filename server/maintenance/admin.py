"""``ferryman admin`` on a server's data folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any, Final, TypeAlias

import typer

from server.domain.growth import document
from server.maintenance import upkeep
from server.maintenance.common import (
    FAILED,
    AsJson,
    Config,
    DataDir,
    DryRun,
    Yes,
    confirm,
    paths_of,
    problems,
    server_paths,
    server_settings,
)
from server.maintenance.growth import predicted
from server.maintenance.rollback import copies_of, plan, roll_back
from server.maintenance.verify import Verified, open_known
from server.maintenance.verify import verify as look_at_everything
from server.store import recount as counting
from shared.clock import SECOND, Clock, RealClock, utc
from shared.units.durations import parse_duration, say_duration
from shared.units.sizes import say_count, say_size
from shared.wire import say_growth

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Rare work on a server's data folder.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PROGRESS_EVERY_S: Final = 1.0
NewIds: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Job numbers to skip [1,000,000, and 10 for each second since the copy]."
    ),
]


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
        typer.Option("--since", metavar="DURATION", help="Only jobs that are no older: 7d."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every file, every digest and every row against each other.

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
        _print_json(asdict(done) | {"checked": dict(done.checked)})
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


@app.command()
def recount(
    config: Config = None,
    data_dir: DataDir = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Count again what is counted: uses of bundles, sizes of results, children, tags.

    Works on the data folder, beside a running server too.

    Exit codes: 0; 1 something is counted wrongly, and --dry-run was given; 2 settings; 74 the
    database cannot be used.
    """
    with problems():
        _, database = server_paths(config, data_dir)
        with closing(open_known(database, writable=not dry_run)) as connection:
            found = list(counting.miscounts(connection))
            mended = [] if dry_run else [one for one in found if counting.mend(connection, one)]
    shown = found if dry_run else mended
    if as_json:
        items = [
            {"kind": one.counted.name, "about": one.key, "stored": one.stored, "counted": one.true}
            for one in shown
        ]
        _print_json({"items": items, "mended": len(mended)})
    else:
        for one in shown:
            typer.echo(one.text)
        if not shown:
            typer.echo("all counts are right")
        elif mended:
            typer.echo(f"mended {say_count(len(mended), 'count')}")
    if dry_run and found:
        raise typer.Exit(FAILED)


@app.command()
def vacuum(config: Config = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Write the whole database again, without free space and remains of deleted rows.

    Works on the data folder; the server must be stopped. It needs twice the size of the database on
    the disk. A running server gives space back by itself, some at a time.

    Exit codes: 0; 2 settings; 73 a server runs, or no room; 74 the database cannot be used.
    """
    with problems():
        done = upkeep.vacuum(*server_paths(config, data_dir))
    if as_json:
        _print_json(asdict(done))
    else:
        typer.echo(f"the database took {say_size(done.before)}, and takes {say_size(done.after)}")


@app.command()
def size(config: Config = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what the database takes, by table, and predict how it grows.

    Works on the data folder, beside a running server too. The prediction follows from the last 7
    days, and from `forget_after` and `expires_after` of each service; `ferryman statistics` and the
    status page of a running server have it too.

    Exit codes: 0; 2 settings; 74 the database cannot be used.
    """
    with problems():
        settings = server_settings(config, data_dir)
        _, database = paths_of(settings)
        found = upkeep.size(database)
        expected = predicted(settings, database, found, RealClock().now())
        growth = None if expected is None else document(expected)
    if as_json:
        _print_json(asdict(found) | {"growth": None if growth is None else growth.model_dump()})
        return
    typer.echo(
        f"database {say_size(found.bytes)}, of which {say_size(found.free_bytes)} free; "
        f"log {say_size(found.log_bytes)}"
    )
    for table in found.tables:
        taken = "" if table.bytes is None else say_size(table.bytes)
        typer.echo(f"  {table.name:20} {table.rows:>12,} rows {taken:>10}")
    typer.echo(say_growth(growth))
    if growth is not None and growth.for_ever:
        typer.echo(f"never forgotten: the jobs of {', '.join(growth.for_ever)}")


@app.command()
def upgrade(
    config: Config = None,
    data_dir: DataDir = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say what would be done, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database to the schema of this version, as a start of the server does.

    Works on the data folder; the server must be stopped, but for --check. A copy is made first.

    Exit codes: 0; 2 settings; 73 a server runs; 74 no room for the copy, or the database cannot be
    used or is of a newer version.
    """
    with problems():
        folder, database = server_paths(config, data_dir)
        found = upkeep.upgrade_plan(database)
        copy = None if check else upkeep.upgrade(folder, database)
    if as_json:
        _print_json(asdict(found) | {"copy": None if copy is None else str(copy)})
        return
    typer.echo(f"the database has schema {found.schema}, this version has {found.known}")
    if found.schema == found.known:
        typer.echo("nothing is to be done")
    elif check:
        typer.echo(
            f"an upgrade copies {say_size(found.copy_bytes)} ({say_size(found.free_bytes)} are "
            f"free) and takes about {say_duration(found.seconds)}; the server does not answer "
            "meanwhile"
        )
    else:
        typer.echo(f"upgraded; the copy to go back to: {copy}")


@app.command()
def rollback(
    config: Config = None,
    data_dir: DataDir = None,
    copy: Annotated[
        str | None,
        typer.Option("--copy", metavar="FILE", help="Which copy [the newest beside the database]."),
    ] = None,
    skip_ids: NewIds = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Go back to the copy of the database that was made before an upgrade.

    Works on the data folder; the server must be stopped. Then install the older version and start
    it. Jobs since the upgrade are lost. The database becomes that of another server: agents end
    what they still hold for the former one.

    Exit codes: 0; 1 not confirmed; 2 settings; 73 a server runs, or no room; 74 there is no
    copy, or it is damaged.
    """
    from pathlib import Path

    with problems():
        folder, database = server_paths(config, data_dir)
        chosen = plan(database, None if copy is None else Path(copy))
        facts = {
            "copy": str(chosen.copy),
            "schema": chosen.schema,
            "made_at": utc(chosen.made_at).isoformat(),
            "jobs": chosen.jobs,
            "lost_jobs": chosen.lost_jobs,
            "others": [str(one) for one in copies_of(database) if one != chosen.copy],
        }
        if not as_json or dry_run:
            _print_plan(facts, as_json=as_json)
        if dry_run:
            return
        if not yes:
            confirm("go back to this copy?", "admin rollback")
        done = roll_back(folder, database, chosen, RealClock(), skip=skip_ids)
    kept = None if done.kept is None else str(done.kept)
    if as_json:
        result = {"next_id": done.first_id, "left_out": done.left_out, "kept": kept}
        result |= {"moved": done.moved, "aside": str(done.aside) if done.moved else None}
        _print_json(facts | result | {"jobs": done.jobs})
        return
    typer.echo(f"{say_count(done.jobs, 'job')}; the next one has number {done.first_id}")
    if done.left_out:
        typer.echo(f"left out, because their files are gone: {say_count(done.left_out, 'job')}")
    if done.moved:
        typer.echo(f"files of later jobs: {done.moved:,}, moved to {done.aside}")
    typer.echo(f"the former database is {kept}; remove it when all is well")


def _print_plan(facts: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        _print_json(facts)
        return
    lost = facts["lost_jobs"]
    typer.echo(
        f"{facts['copy']}: schema {facts['schema']}, of {facts['made_at']}, "
        f"{say_count(facts['jobs'], 'job')}"
    )
    later = "the database of now cannot be read" if lost is None else say_count(lost, "job")
    typer.echo(f"lost since then: {later}")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value))
