"""The command about the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, Limit, on_server

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.token_models import AuditDoc

_HEADS: Final = ("AT", "STATUS", "PRINCIPAL", "FROM", "TOKEN", "ACTION", "TARGET")


@on_server
async def audit(
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="NAME", help="Only what NAME did.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option("--action", metavar="TEXT", help="Only actions with TEXT in them: cancel."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="ID", help="Only what was done to this job or token."),
    ] = None,
    token_id: Annotated[
        str | None,
        typer.Option("--token-id", metavar="ID", help="Only what was done with this token."),
    ] = None,
    for_user: Annotated[
        str | None,
        typer.Option("--for-user", metavar="USER", help="Only what portals did for USER."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Then or later, or 2h: ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Before then, or 2h: ago.")
    ] = None,
    limit: Limit = 50,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Show who did what, from where, newest first."""
    found = client.audit(
        principal=principal,
        user=for_user,
        token=token_id,
        action=action,
        target=target,
        since=since,
        until=until,
        limit=limit or None,
    )
    listed = [one async for one in found]
    if json:
        show.print_json_list(listed)
    else:
        rows = [_row(one) for one in listed]
        show.print_table(_HEADS, rows, drop=("TOKEN", "FROM", "AT"), cut_last=False)


def _row(entry: AuditDoc) -> tuple[str, ...]:
    acts_as = f" for {entry.acts_as}" if entry.acts_as else ""
    left_out = f" ({entry.left_out} more refused before it)" if entry.left_out else ""
    return (
        show.local(entry.at),
        str(entry.status or "left") + (f" {entry.code}" if entry.code else ""),
        f"{entry.principal}{acts_as}",
        entry.peer,
        entry.token_id or "",
        entry.action,
        f"{entry.target}{left_out}",
    )
