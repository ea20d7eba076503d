"""Commands about schedules, thin over the SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from ferryman.cli import options, show, submit_options
from ferryman.cli.filters import OfUser
from ferryman.cli.options import Json, Quiet, Server, on_server, run
from ferryman.cli.selection import select

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models import JobDoc
    from ferryman.schedule_models import ScheduleDoc

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Have a job made at each time of a cron line.",
)

ScheduleId: TypeAlias = Annotated[
    int, typer.Argument(metavar="ID", parser=options.number, hidden=True)
]
_HEADS: Final = ("ID", "STATE", "NAME", "CRON", "ZONE", "NEXT", "JOB", "MESSAGE")


@app.command("add")
@on_server
def add(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", hidden=True)],
    cron: Annotated[
        str,
        typer.Option("--cron", metavar="LINE", help="Minute, hour, day, month, weekday."),
    ],
    service: Annotated[
        str,
        typer.Option(
            "--service", "-s", metavar="NAME", envvar="FERRYMAN_SERVICE", help="Which kind of work."
        ),
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of the schedule, and of its jobs.")
    ],
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            "-u",
            metavar="NAME",
            envvar="FERRYMAN_USER",
            help="Whose jobs they are; default: the token's, or else your login name.",
        ),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option("--time-zone", metavar="ZONE", help="Such as Europe/Amsterdam; default: UTC."),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            "--overlap",
            metavar="POLICY",
            help="While the job before goes on: skip_if_running, queue or replace.",
        ),
    ] = None,
    missed: Annotated[
        str | None,
        typer.Option(
            "--missed", metavar="POLICY", help="Times while the server was down: skip or run_once."
        ),
    ] = None,
    tag: submit_options.Tag = None,
    timeout: submit_options.Timeout = None,
    retries: submit_options.Retries = None,
    priority: submit_options.Priority = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Store a bundle, and have a job made of it at each time.

    Prints the schedule's number.

    PATH is what `ferryman submit` takes, which leaves out the same.
    """
    selection = select(paths, (), everything=False)
    if not (quiet or json):
        for line in selection.lines():
            show.print_message(line)
    when: Any = {"time_zone": time_zone, "overlap": overlap, "missed": missed}

    async def work() -> int:
        async with server.client() as client:
            whose = await server.user_of(client, user)
            schedule = await client.add_schedule(
                selection.files,
                cron=cron,
                service=service,
                name=name,
                user=whose,
                tags=tag or (),
                timeout=timeout,
                retries=retries,
                priority=priority,
                **when,
            )
        if json:
            show.print_json(schedule)
        else:
            typer.echo(schedule.id)
            if not quiet and schedule.next_at:
                show.print_message(f"its first job comes at {show.local(schedule.next_at)}")
        return 0

    run(work())


@app.command("list")
@on_server
def list_schedules(
    user: OfUser = None,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """List schedules, and when they are due."""

    async def work() -> int:
        async with server.client() as client:
            listed = [one async for one in client.schedules(user=user)]
        if json:
            show.print_json_list(listed)
        elif not listed:
            show.print_message("there are no schedules")
        else:
            show.print_table(_HEADS, [_row(one) for one in listed], drop=("ZONE", "JOB", "CRON"))
        return 0

    run(work())


def _row(schedule: ScheduleDoc) -> tuple[str, ...]:
    return (
        str(schedule.id),
        "paused" if schedule.paused else "active",
        schedule.name,
        schedule.cron,
        schedule.time_zone,
        show.local(schedule.next_at) if schedule.next_at else "",
        str(schedule.last_job_id or ""),
        schedule.message,
    )


@app.command()
@on_server
def pause(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, server: Server
) -> None:
    """Make no jobs of it until it is resumed."""

    async def work(client: Client) -> Outcome:
        schedule = await client.pause_schedule(schedule_id)
        return Outcome(schedule, f"schedule {schedule_id} is paused")

    _change(server, work, quiet=quiet, json=json)


@app.command()
@on_server
def resume(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, server: Server
) -> None:
    """Go on with its next time."""

    async def work(client: Client) -> Outcome:
        schedule = await client.resume_schedule(schedule_id)
        when = show.local(schedule.next_at) if schedule.next_at else "a time that is not known"
        return Outcome(schedule, f"its next job comes at {when}")

    _change(server, work, quiet=quiet, json=json)


@app.command("run")
@on_server
def run_now(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, server: Server
) -> None:
    """Make a job of it now; print the job's number."""

    async def work(client: Client) -> Outcome:
        job = await client.run_schedule(schedule_id)
        if job is None:
            return Outcome(None, "the job before is cancelled first; then it makes one")
        if not json:
            typer.echo(job.id)
        return Outcome(job, "")

    _change(server, work, quiet=quiet, json=json)


@app.command()
@on_server
def delete(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, server: Server
) -> None:
    """Delete it; its jobs stay."""

    async def work(client: Client) -> Outcome:
        await client.delete_schedule(schedule_id)
        return Outcome(None, f"schedule {schedule_id} is deleted")

    _change(server, work, quiet=quiet, json=json)


class Outcome(NamedTuple):
    """What came of a change."""

    document: ScheduleDoc | JobDoc | None
    message: str


def _change(
    server: Server, work: Callable[[Client], Awaitable[Outcome]], *, quiet: bool, json: bool
) -> None:
    """Do it, and say what came of it."""

    async def run_work() -> int:
        async with server.client() as client:
            outcome = await work(client)
        if not json:
            if outcome.message and not quiet:
                show.print_message(outcome.message)
        elif outcome.document is not None:
            show.print_json(outcome.document)
        else:
            show.print_documents([{"message": outcome.message}])
        return 0

    run(run_work())
