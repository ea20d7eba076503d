"""Commands about schedules, thin over the SDK."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from ferryman.cli import options, show, submit_options
from ferryman.cli.filters import OfUser
from ferryman.cli.options import Json, Quiet, Server, on_server
from ferryman.cli.selection import select

if TYPE_CHECKING:
    from ferryman.client import Client
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
async def add(
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
    client: Client,
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


@app.command("list")
@on_server
async def list_schedules(
    user: OfUser = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """List schedules, and when they are due."""
    listed = [one async for one in client.schedules(user=user)]
    if json:
        show.print_json_list(listed)
    elif not listed:
        show.print_message("there are no schedules")
    else:
        show.print_table(_HEADS, [_row(one) for one in listed], drop=("ZONE", "JOB", "CRON"))


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
async def pause(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, client: Client
) -> None:
    """Make no jobs of it until it is resumed."""
    schedule = await client.pause_schedule(schedule_id)
    _say(schedule, f"schedule {schedule_id} is paused", quiet=quiet, json=json)


@app.command()
@on_server
async def resume(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, client: Client
) -> None:
    """Go on with its next time."""
    schedule = await client.resume_schedule(schedule_id)
    when = show.local(schedule.next_at) if schedule.next_at else "a time that is not known"
    _say(schedule, f"its next job comes at {when}", quiet=quiet, json=json)


@app.command("run")
@on_server
async def run_now(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, client: Client
) -> None:
    """Make a job of it now; print the job's number."""
    job = await client.run_schedule(schedule_id)
    if job is None:
        _say(None, "the job before is cancelled first; then it makes one", quiet=quiet, json=json)
    elif json:
        show.print_json(job)
    else:
        typer.echo(job.id)


@app.command()
@on_server
async def delete(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, client: Client
) -> None:
    """Delete it; its jobs stay."""
    await client.delete_schedule(schedule_id)
    _say(None, f"schedule {schedule_id} is deleted", quiet=quiet, json=json)


def _say(document: ScheduleDoc | None, message: str, *, quiet: bool, json: bool) -> None:
    """What came of a change."""
    if not json:
        if not quiet:
            show.print_message(message)
    elif document is not None:
        show.print_json(document)
    else:
        show.print_documents([{"message": message}])
