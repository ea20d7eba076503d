"""``ferryman events``, and commands about webhooks, thin over the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, OfService, OfUser, Quiet, Server, job_id, number, on_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ferryman.client import Client
    from ferryman.models.events import DeliveryDoc, DeliveryState, EventDoc

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List webhooks and their tries, and send one again.",
)

DeliveryId: TypeAlias = Annotated[int, typer.Argument(metavar="ID", parser=number, hidden=True)]
_HEADS: Final = ("ID", "JOB", "EVENT", "STATE", "TRIES", "NEXT", "URL", "MESSAGE")


@on_server
async def events(
    job: Annotated[int | None, typer.Argument(metavar="ID", parser=job_id, hidden=True)] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, as it happens.")
    ] = False,
    user: OfUser = None,
    service: OfService = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Show what happened to a job, or to all jobs.

    Of a job all that has happened so far, and with --follow what happens until it has ended.
    Without an ID, what happens to all jobs that you may see from now on; Ctrl-C ends it. --json
    prints a document a line.
    """
    if job is not None and (user or service):
        raise typer.BadParameter("--user and --service choose among all jobs: leave out the ID")
    if job is None:
        found = client.all_events(user=user, service=service)
    else:
        found = client.events(job, follow=follow)
    await _print(client, found, json=json, of_all=job is None)


async def _print(
    client: Client, found: AsyncGenerator[EventDoc, None], *, json: bool, of_all: bool
) -> None:
    start = None
    async for event in found:
        if json:
            typer.echo(event.model_dump_json())
        elif of_all:
            what = event.event or f"job.{event.status.lower()}"
            words = f"{show.local(event.at)}  {event.job_id:>6}  {what:<14}  {event.message}"
            typer.echo(show.printable(" ".join(words.splitlines())).rstrip())
        else:
            if start is None:
                start = (await client.status(event.job_id or 0)).created_at
            typer.echo(show.printable(show.event_line(event, start)))


@app.command("list")
@on_server
async def list_deliveries(
    job: Annotated[
        int | None,
        typer.Option("--job", metavar="ID", parser=job_id, help="Only this job's."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="Only pending, delivered or failed ones."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many; default: 50.")
    ] = 50,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """List webhooks that were or are to be delivered, newest first."""
    listed: list[DeliveryDoc] = []
    async for one in client.deliveries(job, state=cast("DeliveryState | None", state)):
        listed.append(one)
        if len(listed) == limit:
            break
    if json:
        show.print_json_list(listed)
    else:
        drop = ("TRIES", "NEXT", "EVENT", "URL", "MESSAGE")
        show.print_table(_HEADS, [_row(one) for one in listed], drop=drop)


@app.command("show")
@on_server
async def show_delivery(delivery_id: DeliveryId, json: Json = False, *, client: Client) -> None:
    """Show a webhook, and how its tries went."""
    found = await client.delivery(delivery_id)
    if json:
        show.print_json(found)
        return
    typer.echo(show.printable(f"{found.event} of job {found.job_id} to {found.url}"))
    typer.echo(show.printable(f"  {found.state}: {found.message or 'not tried yet'}"))
    for one in found.tried:
        how = one.problem or f"answered {one.status}"
        at = f"{show.local(one.at)}  {one.seconds:.2f}s"
        typer.echo(show.printable(f"  {one.number:>3}  {at}  {how}"))
    if found.next_at is not None:
        typer.echo(f"  tried again at {show.local(found.next_at)}")


@app.command()
@on_server
async def replay(
    delivery_ids: Annotated[list[int], typer.Argument(metavar="ID...", parser=number, hidden=True)],
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
    client: Client,
) -> None:
    """Send webhooks again, now."""
    for delivery_id in delivery_ids:
        found = await client.replay(delivery_id)
        if json:
            show.print_json(found)
        elif not quiet:
            how = server.command(f"deliveries show {found.id}")
            show.print_message(
                f"{found.event} of job {found.job_id} is sent again; how it went: {how}"
            )


@app.command()
@on_server
async def secret(
    principal: Annotated[
        str | None,
        typer.Option("--principal", metavar="NAME", help="For operators: of what it uploads."),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option("--service", "-s", metavar="NAME", help="For operators: of this service."),
    ] = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Print what signs the webhooks of your jobs, whsec_…"""
    found = await client.webhook_secret(principal=principal, service=service)
    if json:
        show.print_json(found)
    else:
        for one in found.secrets:
            typer.echo(one)


def _row(one: DeliveryDoc) -> tuple[str, ...]:
    return (
        str(one.id),
        str(one.job_id),
        one.event,
        one.state,
        str(one.tries),
        "" if one.next_at is None else show.local(one.next_at),
        one.url,
        one.message,
    )
