"""Commands about batches and what hangs on what, thin over the SDK."""

from __future__ import annotations

from typing import Annotated

import typer

from ferryman.cli import show
from ferryman.cli.options import JobId, Json, Server, on_server, run, state_named

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List batches, and the children of one.",
)


@app.command("list")
@on_server
def list_batches(
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="NAME", help="Those of this user.")
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", "-s", metavar="NAME", help="Those of this service.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="Those in this state.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Those with this tag.")
    ] = None,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """List batches, newest first: the parents of arrays."""
    given = {"user": user, "service": service, "state": state_named(state), "tag": tag}
    where = {name: value for name, value in given.items() if value}

    async def work() -> int:
        async with server.client() as client:
            listed = [job async for job in client.batches(where)]
        if json:
            show.print_json_list(listed)
        elif not listed:
            show.print_message("there are no batches")
        else:
            show.print_jobs(listed)
        return 0

    run(work())


@app.command("children")
@on_server
def children(
    job_id: JobId,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="Those in this state.")
    ] = None,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """List the children of a parent."""
    wanted = state_named(state)

    async def work() -> int:
        async with server.client() as client:
            listed = [job async for job in client.children(job_id, state=wanted)]
        if json:
            show.print_json_list(listed)
        else:
            show.print_jobs(listed)
        return 0

    run(work())


@on_server
def graph(
    job_id: JobId,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Draw what depends on a job, and on what it depends.

    As a Mermaid diagram.
    """

    async def work() -> int:
        async with server.client() as client:
            drawn = await client.graph(job_id)
        if json:
            show.print_documents([{"job_id": job_id, "format": "mermaid", "graph": drawn}])
        else:
            typer.echo(show.printable(drawn).rstrip())
        return 0

    run(work())


@on_server
def dead_letters(
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="NAME", help="Those of this user.")
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", "-s", metavar="NAME", help="Those of this service.")
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="CODE", help="Those that failed for this reason."),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Those with this tag.")
    ] = None,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """List the jobs that failed for good and are kept.

    They stay until somebody retries or deletes them.
    """
    given = {"user": user, "service": service, "reason": reason, "tag": tag}
    where = {name: value for name, value in given.items() if value}

    async def work() -> int:
        async with server.client() as client:
            listed = [job async for job in client.dead_letters(where)]
        if json:
            show.print_json_list(listed)
        elif not listed:
            show.print_message("there are no dead letters")
        else:
            show.print_jobs(listed)
        return 0

    run(work())
