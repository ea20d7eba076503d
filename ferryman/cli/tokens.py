"""Commands about tokens, and about who the caller is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, Quiet, on_server

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.token_models import NewTokenDoc, RoleName, ScopeName, TokenDoc

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, list, rotate and revoke tokens.",
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
        str | None,
        typer.Option("--user", "-u", metavar="USER", help="Whose jobs; default: NAME."),
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
        if json:
            show.print_json(token)
        elif not quiet:
            show.print_message(f"token {token.id} of {_whose(token)} is revoked")


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
    if json:
        show.print_json_list(listed)
    else:
        drop = ("SCOPES", "LAST USED", "EXPIRES", "USER", "ROLE")
        show.print_table(_HEADS, [_row(one) for one in listed], drop=drop)


@on_server
async def whoami(
    json: Json = False,
    *,
    client: Client,
) -> None:
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
