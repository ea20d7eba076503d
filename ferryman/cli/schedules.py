"""Commands about schedules, thin over the SDK."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from ferryman.cli import options, show
from ferryman.cli.options import Json, OfUser, Quiet, Server, on_server
from ferryman.cli.submit import Service, Tag, User, select, with_fields

if TYPE_CHECKING:
    from ferryman.client import Client

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Have a job made at each time of a cron line.",
)

ScheduleId: TypeAlias = Annotated[
    int, typer.Argument(metavar="ID", parser=options.number, hidden=True)
]
Cron: TypeAlias = Annotated[
    str, typer.Option("--cron", metavar="LINE", help="Minute, hour, day, month, weekday.")
]
Name: TypeAlias = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Of the schedule, and of its jobs.")
]
TimeZone: TypeAlias = Annotated[
    str | None,
    typer.Option("--time-zone", metavar="ZONE", help="Such as Europe/Amsterdam; default: UTC."),
]
_HEADS: Final = ("ID", "NAME", "CRON", "ZONE", "NEXT", "JOB", "MESSAGE")


@app.command("add")
@on_server
@with_fields("timeout", "retries", "priority")
async def add(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", hidden=True)],
    cron: Cron,
    service: Service,
    name: Name,
    user: User = None,
    time_zone: TimeZone = None,
    tag: Tag = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
    client: Client,
    **fields: Any,
) -> None:
    """Store a bundle, and have a job made of it at each time.

    Prints the schedule's number.

    PATH is what `ferryman submit` takes, which leaves out the same.
    """
    selection = select(paths, (), everything=False)
    for line in () if quiet or json else selection.lines():
        show.print_message(line)
    schedule = await client.add_schedule(
        selection.files,
        cron=cron,
        service=service,
        name=name,
        user=await server.user_of(client, user),
        time_zone=time_zone,
        tags=tag or (),
        **fields,
    )
    if json:
        show.print_json(schedule)
    else:
        typer.echo(schedule.id)
        if not quiet:
            show.print_message(f"its first job comes at {show.local(schedule.next_at)}")


@app.command("list")
@on_server
async def list_schedules(user: OfUser = None, json: Json = False, *, client: Client) -> None:
    """List schedules, and when they are due."""
    listed = [one async for one in client.schedules(user=user)]
    if json:
        show.print_json_list(listed)
    elif not listed:
        show.print_message("there are no schedules")
    else:
        rows = []
        for one in listed:
            next_at, job = show.local(one.next_at), str(one.last_job_id or "")
            when = (one.cron, one.time_zone, next_at)
            rows.append((str(one.id), one.name, *when, job, one.message))
        show.print_table(_HEADS, rows, drop=("ZONE", "JOB", "CRON"))


@app.command()
@on_server
async def delete(
    schedule_id: ScheduleId, quiet: Quiet = False, json: Json = False, *, client: Client
) -> None:
    """Delete it; its jobs stay."""
    await client.delete_schedule(schedule_id)
    message = f"schedule {schedule_id} is deleted"
    if json:
        show.print_documents([{"message": message}])
    elif not quiet:
        show.print_message(message)
