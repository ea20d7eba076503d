"""Commands about the services of a server, thin over the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED
from ferryman.cli.options import Json, Quiet, on_server
from ferryman.units import say_count

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models.jobs import BulkItem
    from ferryman.models.operators import ServiceDoc

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List services; pause, resume and empty them."
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", hidden=True)]
_HEADS: Final = ("SERVICE", "STATE", "RUNNING", "QUEUED", "OLDEST", "MESSAGE")


@app.command("list")
@on_server
async def list_services(json: Json = False, *, client: Client) -> None:
    """List the services, and how busy they are."""
    listed = await client.services()
    show.emit_list(listed, _HEADS, _row, drop=("OLDEST", "RUNNING"), json=json)


@app.command()
@on_server
async def pause(
    name: Name,
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", metavar="TEXT", help="Why; shown to those who wait."),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Let the queued jobs of a service wait; those that run go on."""
    service = await client.change_service(name, "pause", message)
    show.emit(service, f"service {service.name} is paused", json=json, quiet=quiet)


@app.command()
@on_server
async def resume(name: Name, quiet: Quiet = False, json: Json = False, *, client: Client) -> None:
    """Send the jobs of a paused service again."""
    service = await client.change_service(name, "resume")
    show.emit(service, f"service {service.name} is not paused", json=json, quiet=quiet)


@app.command()
@on_server
async def move(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="TO", hidden=True)],
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> int:
    """Let all jobs of a service that have not ended be of another one.

    For a service that was renamed or taken out of the settings. Jobs that run go on; all keep the
    limits and timeouts that they were uploaded with. `ferryman cancel --all --service NAME` cancels
    them instead.
    """
    moved: list[BulkItem] = []
    while name != to:  # a parent that was not moved yet may have made children meanwhile
        items = [one async for one in client.bulk("move", where={"service": name}, service=to)]
        moved += items
        if not any(item.code == "moved" for item in items):
            break
    if json:
        show.print_json_list(moved)
    elif not quiet:
        done = sum(item.code == "moved" for item in moved)
        show.print_message(f"{say_count(done, 'job')} of service {name} moved to {to}")
    return 0 if all(item.ok for item in moved) else FAILED


def _row(service: ServiceDoc) -> tuple[str, ...]:
    from ferryman.states import JobState

    state = "retired" if service.retired else "paused" if service.paused else "active"
    message = service.paused_message or ("" if service.offered else "no agent offers it")
    if service.source == "none":
        state, message = "gone", f"it is in no settings: ferryman services move {service.name} TO"
    return (
        service.name,
        state,
        f"{service.in_work} of {service.max_runs}",
        str(service.counts.get(JobState.QUEUED, 0)),
        show.local(service.oldest_queued_at) if service.oldest_queued_at else "",
        message,
    )
