"""``ferryman events`` and ``webhook-secret``, thin over the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, OfService, OfUser, job_id, on_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ferryman.client import Client
    from ferryman.models.events import EventDoc


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


@on_server
async def webhook_secret(
    replace: Annotated[
        bool, typer.Option("--replace", help="Make another one; for a day both sign.")
    ] = False,
    principal: Annotated[
        str | None,
        typer.Option("--principal", metavar="NAME", help="For operators: of what it uploads."),
    ] = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Print what signs your jobs' webhooks, or replace it.

    The first line is the one in use. A second one was replaced within a day, and signs, too.
    """
    found = await client.webhook_secret(principal=principal, replace=replace)
    if json:
        show.print_json(found)
    else:
        for one in found.secrets:
            typer.echo(one)
