"""``ferryman graph``, thin over the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ferryman.cli import show
from ferryman.cli.options import JobId, Json, on_server

if TYPE_CHECKING:
    from ferryman.client import Client


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
