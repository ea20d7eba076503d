"""Options that choose among jobs."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from ferryman.cli.options import job_id

OfUser: TypeAlias = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help="Those of this user.")
]
OfService: TypeAlias = Annotated[
    str | None, typer.Option("--service", "-s", metavar="NAME", help="Those of this service.")
]
InState: TypeAlias = Annotated[
    str | None, typer.Option("--state", metavar="STATE", help="Those in this state.")
]
WithTag: TypeAlias = Annotated[
    str | None, typer.Option("--tag", metavar="TAG", help="Those with this tag.")
]
WithReason: TypeAlias = Annotated[
    str | None, typer.Option("--reason", metavar="CODE", help="Those that failed for this reason.")
]
DeadLetters: TypeAlias = Annotated[
    bool, typer.Option("--dead-letters", help="Those that failed for good and are kept.")
]
Since: TypeAlias = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Those uploaded since; 2h: two hours ago."),
]
Parent: TypeAlias = Annotated[
    int | None,
    typer.Option("--parent", metavar="ID", parser=job_id, help="The children of this job."),
]
