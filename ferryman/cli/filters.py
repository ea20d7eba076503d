"""Options that choose among jobs."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

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


def chosen(**given: str | None) -> dict[str, str]:
    """The filters that were given."""
    return {name: value for name, value in given.items() if value}
