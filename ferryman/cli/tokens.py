"""Commands about tokens, about who the caller is and what it may use, and the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, Limit, Quiet, Server, on_server
from ferryman.units import say_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferryman.client import Client
    from ferryman.models.operators import (
        AuditDoc,
        NewTokenDoc,
        Quota,
        RoleName,
        ScopeName,
        TokenDoc,
        UsageDoc,
    )

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make, list, rotate and revoke tokens."
)

TokenId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", hidden=True)]
ExpiresIn: TypeAlias = Annotated[
    str | None,
    typer.Option("--expires-in", metavar="TIME", help="It ends then: 90d. Default: never."),
]
_HEADS: Final = ("ID", "STATE", "NAME", "ROLE", "USER", "EXPIRES", "LAST USED", "SCOPES")


@app.command()
@on_server
async def create(
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True)],
    role: Annotated[
        str, typer.Option("--role", "-r", metavar="ROLE", help="user, portal, operator or agent.")
    ] = "user",
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="USER", help="Whose jobs; default: NAME.")
    ] = None,
    users: Annotated[
        list[str] | None,
        typer.Option(
            "--users",
            metavar="PATTERN",
            help="Of a portal: for whom it may act, such as 'lab-*'; may be repeated.",
        ),
    ] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read, submit, manage, operate or admin; may be repeated. "
            "Default: all that its role has.",
        ),
    ] = None,
    expires_in: ExpiresIn = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Make a token for a principal called NAME, and print it. It is not shown again."""
    made = await client.create_token(
        name,
        cast("RoleName", role),
        user=user,
        users=users or (),
        scopes=cast("list[ScopeName] | None", scopes or None),
        expires_in=expires_in,
    )
    _print_new(made, f"token {made.id} of {_whose(made)}", quiet=quiet, json=json)


@app.command()
@on_server
async def rotate(
    token_id: TokenId,
    overlap: Annotated[
        str,
        typer.Option("--overlap", metavar="TIME", help="The former one is good for so long: 1h."),
    ] = "0s",
    expires_in: ExpiresIn = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Give a token another secret, and print it. It is not shown again."""
    made = await client.rotate_token(token_id, overlap=overlap, expires_in=expires_in)
    what = f"token {made.id} has another secret"
    if made.former_until:
        what += f", the former one is good until {show.local(made.former_until)}"
    _print_new(made, what, quiet=quiet, json=json)


@app.command()
@on_server
async def revoke(
    token_ids: Annotated[list[str], typer.Argument(metavar="ID...", hidden=True)],
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Have tokens refused from now on."""
    for token_id in token_ids:
        token = await client.revoke_token(token_id)
        text = f"token {token.id} of {_whose(token)} is revoked"
        show.emit(token, text, json=json, quiet=quiet)


@app.command("list")
@on_server
async def list_tokens(
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only this principal's.")
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", "-r", metavar="ROLE", help="Only of this role.")
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also those that were revoked or have expired.")
    ] = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """List the tokens, newest first, without their secrets."""
    found = client.tokens(name=name, role=cast("RoleName | None", role), ended=ended)
    listed = [one async for one in found]
    drop = ("SCOPES", "LAST USED", "EXPIRES", "USER", "ROLE")
    show.emit_list(listed, _HEADS, _row, drop=drop, json=json)


@on_server
async def whoami(json: Json = False, *, client: Client) -> None:
    """Show who you are to the server, and what you may do."""
    me = await client.whoami()
    if json:
        show.print_json(me)
        return
    typer.echo(show.printable(f"{me.name}: {me.role}, may {', '.join(me.scopes)}"))
    if me.user_id:
        typer.echo(show.printable(f"  sees and makes jobs of user {me.user_id}"))
    if me.role == "portal":
        typer.echo(show.printable(f"  acts for {', '.join(me.users) or 'any user'}"))
    if me.token_id:
        ends = f"expires {show.local(me.expires_at)}" if me.expires_at else "does not expire"
        typer.echo(show.printable(f"  token {me.token_id}, which {ends}"))
    if not me.token_needed:
        typer.echo("  the server takes everybody on its machine for an operator")


def _print_new(made: NewTokenDoc, what: str, *, quiet: bool, json: bool) -> None:
    if json:
        show.print_json(made)
        return
    typer.echo(made.token)
    if not quiet:
        show.print_message(f"{what}; keep it, it is not shown again")
        if made.message:
            show.print_message(f"note: {made.message}")


def _whose(token: TokenDoc) -> str:
    user = f" for user {token.user_id}" if token.user_id not in (None, token.name) else ""
    return f"{token.role} {token.name}{user}"


def _row(token: TokenDoc) -> tuple[str, ...]:
    used = show.local(token.last_used_at) if token.last_used_at else "never"
    return (
        token.id,
        token.state,
        token.name,
        token.role,
        token.user_id or ",".join(token.users),
        show.local(token.expires_at) if token.expires_at else "never",
        f"{used} from {token.last_used_from}" if token.last_used_from else used,
        ",".join(token.scopes),
    )


_USAGE: Final = ("WHAT", "USED", "LIMIT", "LEFT")


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
    show.print_table(_USAGE, _usage(found), drop=("USED",))


def _usage(found: UsageDoc) -> list[tuple[str, ...]]:
    rows = [_quota("stored", found.stored, say_size), _quota("uploads at once", found.uploads, str)]
    if found.uploaded_today is not None:
        rows.insert(1, _quota("uploaded today", found.uploaded_today, say_size))
    for one in found.services:
        rows.append(_quota(f"{one.service}: under way", one.under_way, str))
        rows.append(_quota(f"{one.service}: waiting", one.waiting, str))
    return [*rows, ("requests", "", found.rate_limit or "none", "")]


def _quota(what: str, quota: Quota, say: Callable[[int], str]) -> tuple[str, ...]:
    limit = "none" if quota.limit is None else say(quota.limit)
    return what, say(quota.used), limit, "" if quota.left is None else say(quota.left)


_AUDIT: Final = ("AT", "STATUS", "PRINCIPAL", "FROM", "TOKEN", "ACTION", "TARGET")


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
    drop = ("TOKEN", "FROM", "AT")
    show.emit_list(listed, _AUDIT, _entry, drop=drop, json=json, cut_last=False)


def _entry(entry: AuditDoc) -> tuple[str, ...]:
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
