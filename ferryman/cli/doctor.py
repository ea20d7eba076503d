"""``ferryman doctor``: finds what is wrong between here and a job's result."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, Server, on_server

if TYPE_CHECKING:
    from ferryman.client import Client


@on_server
async def doctor(json: Json = False, *, server: Server, client: Client) -> int:
    """Find what is wrong: server, token, clock, agents, versions.

    Looks at what a job needs, from this machine on: whether the server answers and takes work, what
    the token is good for, whether clocks and versions agree, whether agents offer the services, and
    for operators, how the agents and their sandboxes are. The exit code is 0 without a problem, and
    otherwise that of the first one. What is wrong on their hosts find `ferryman server doctor` and
    `ferryman agent doctor`.
    """
    from ferryman import __version__
    from ferryman.cli.findings import Examination
    from ferryman.clock import wall_clock
    from ferryman.findings import exit_code, lines

    found = []
    looked_at = Examination(
        client, server.command, server.token is not None, __version__, wall_clock
    )
    async for finding in looked_at.findings():
        found.append(finding)
        if not json:
            for line in lines(finding):
                typer.echo(show.printable(line))
    if json:
        show.print_documents([{"findings": [asdict(one) for one in found]}])
    return exit_code(found)
