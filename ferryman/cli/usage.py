"""``ferryman usage``: what a user has used of everything that is limited, and what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, Server, on_server
from ferryman.units import say_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferryman.client import Client
    from ferryman.usage_models import Quota, UsageDoc

_HEADS: Final = ("WHAT", "USED", "LIMIT", "LEFT")


@on_server
async def usage(
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            "-u",
            metavar="NAME",
            envvar="FERRYMAN_USER",
            help="Whose; default: the token's, or else your login name.",
        ),
    ] = None,
    json: Json = False,
    *,
    server: Server,
    client: Client,
) -> None:
    """Show what a user may use, and what is left of it."""
    whose = await server.user_of(client, user)
    found = await client.usage(whose)
    if json:
        show.print_json(found)
        return
    show.print_message(f"user {found.user_id}")
    show.print_table(_HEADS, _rows(found), drop=("USED",))


def _rows(found: UsageDoc) -> list[tuple[str, ...]]:
    rows = [
        _row("stored", found.stored, say_size),
        _row("uploads at once", found.uploads, str),
    ]
    if found.uploaded_today is not None:
        rows.insert(1, _row("uploaded today", found.uploaded_today, say_size))
    for one in found.services:
        rows.append(_row(f"{one.service}: under way", one.under_way, str))
        rows.append(_row(f"{one.service}: waiting", one.waiting, str))
    return [*rows, ("requests", "", found.rate_limit or "none", "")]


def _row(what: str, quota: Quota, say: Callable[[int], str]) -> tuple[str, ...]:
    limit = "none" if quota.limit is None else say(quota.limit)
    return what, say(quota.used), limit, "" if quota.left is None else say(quota.left)
