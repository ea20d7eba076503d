"""Commands about batches and what hangs on what, thin over the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ferryman.cli import show
from ferryman.cli.filters import InState, OfService, OfUser, WithReason, WithTag, chosen
from ferryman.cli.options import JobId, Json, on_server, state_named

if TYPE_CHECKING:
    from ferryman.client import Client


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List batches, and the children of one.",
)


@app.command("list")
@on_server
async def list_batches(
    user: OfUser = None,
    service: OfService = None,
    state: InState = None,
    tag: WithTag = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """List batches, newest first: the parents of arrays."""
    where = chosen(user=user, service=service, state=state_named(state), tag=tag)
    listed = [job async for job in client.batches(where)]
    if json:
        show.print_json_list(listed)
    elif not listed:
        show.print_message("there are no batches")
    else:
        show.print_jobs(listed)


@app.command("children")
@on_server
async def children(
    job_id: JobId,
    state: InState = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """List the children of a parent."""
    wanted = state_named(state)
    listed = [job async for job in client.children(job_id, state=wanted)]
    if json:
        show.print_json_list(listed)
    else:
        show.print_jobs(listed)


@on_server
async def graph(
    job_id: JobId,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Draw what depends on a job, and on what it depends.

    As a Mermaid diagram.
    """
    drawn = await client.graph(job_id)
    if json:
        show.print_documents([{"job_id": job_id, "format": "mermaid", "graph": drawn}])
    else:
        typer.echo(show.printable(drawn).rstrip())


@on_server
async def dead_letters(
    user: OfUser = None,
    service: OfService = None,
    reason: WithReason = None,
    tag: WithTag = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """List the jobs that failed for good and are kept.

    They stay until somebody retries or deletes them.
    """
    where = chosen(user=user, service=service, reason=reason, tag=tag)
    listed = [job async for job in client.dead_letters(where)]
    if json:
        show.print_json_list(listed)
    elif not listed:
        show.print_message("there are no dead letters")
    else:
        show.print_jobs(listed)
