"""``ferryman doctor``: finds what is wrong between here and a job's result."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED
from ferryman.cli.options import Json, Server, on_server

if TYPE_CHECKING:
    from ferryman.cli.findings import Finding
    from ferryman.client import Client

_MARKS: Final = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


@on_server
async def doctor(json: Json = False, *, server: Server, client: Client) -> int:
    """Find what is wrong: server, token, clock, agents, versions.

    Looks at what a job needs, from this machine on: whether the server answers and takes work, what
    the token is good for, whether clocks and versions agree, whether agents offer the services, and
    for operators, how the agents and their sandboxes are. The exit code is 0 without a problem, and
    otherwise that of the first one.
    """
    from ferryman import __version__
    from ferryman.cli.findings import Examination
    from ferryman.clock import wall_clock

    found = []
    looked_at = Examination(
        client, server.command, server.token is not None, __version__, wall_clock
    )
    async for finding in looked_at.findings():
        found.append(finding)
        if not json:
            _print(finding)
    if json:
        show.print_documents([{"findings": [asdict(one) for one in found]}])
    return next((one.exit_code or FAILED for one in found if one.level == "problem"), 0)


def _print(finding: Finding) -> None:
    text = " ".join(finding.text.split())
    typer.echo(show.printable(f"{_MARKS[finding.level]:<8} {finding.about}: {text}"))
    if finding.hint is not None and finding.level != "ok":
        typer.echo(show.printable(f"{'':<9}{finding.hint}"))
