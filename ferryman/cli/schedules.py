"""Commands about schedules, thin over the SDK."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from ferryman.cli import options, show
from ferryman.cli.options import Json, OfUser, Quiet, Server, on_server, with_options
from ferryman.cli.submit import Service, Tag, User, fields, select

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models.jobs import ScheduleDoc

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Have a job made at each time of a cron line."
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
@with_options(fields("timeout", "retries", "priority"))
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
    **wanted: Any,
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
        **wanted,
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
    drop = ("ZONE", "JOB", "CRON")
    show.emit_list(listed, _HEADS, _row, drop=drop, json=json, none="there are no schedules")


def _row(one: ScheduleDoc) -> tuple[str, ...]:
    when = (one.cron, one.time_zone, show.local(one.next_at))
    return (str(one.id), one.name, *when, str(one.last_job_id or ""), one.message)


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
