"""``ferryman files``, thin over the SDK."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ferryman.cli import show
from ferryman.cli.options import Attempt, JobId, Json, Server, on_server
from ferryman.cli.results import explained
from ferryman.errors import NoResult, NotReady
from ferryman.units import say_size

if TYPE_CHECKING:
    from ferryman.client import Client


@on_server
async def files(
    job_id: JobId,
    attempt: Attempt = None,
    json: Json = False,
    *,
    server: Server,
    client: Client,
) -> None:
    """List the files of a job, while it runs, too.

    `ferryman download ID FILE` fetches one of them.
    """
    try:
        found = [one async for one in client.files(job_id, attempt=attempt)]
    except (NoResult, NotReady) as problem:
        raise explained(problem, server, job_id, attempt) from None
    if json:
        show.print_json_list(found)
        return
    to_people = sys.stdout.isatty()
    rows = [
        (
            one.path,
            say_size(one.size) if to_people else str(one.size),
            one.type,
            show.local(one.modified_at) if one.modified_at else "",
        )
        for one in found
    ]
    show.print_table(("PATH", "SIZE", "TYPE", "CHANGED"), rows, drop=("TYPE", "CHANGED"))
