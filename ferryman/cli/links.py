"""``ferryman link``, ``ferryman ticket`` and ``ferryman dashboard``: for browsers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.options import JobId, Json, Quiet, on_server
from ferryman.errors import BadArgument

if TYPE_CHECKING:
    from ferryman.client import Client, Shown

ExpiresIn: TypeAlias = Annotated[
    str | None, typer.Option("--expires-in", metavar="TIME", help="It is good for so long.")
]


@on_server
async def link(
    job_id: JobId,
    file: Annotated[str | None, typer.Argument(metavar="FILE", hidden=True)] = None,
    result: Annotated[
        bool, typer.Option("--result", help="To the result only, not to the whole job.")
    ] = False,
    expires_in: ExpiresIn = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Print an address that shows a job without a token.

    With FILE: that one file of it. Whoever has the address can read what it shows: at most 30d, by
    default 1d.
    """
    if file is not None and result:
        raise BadArgument("--result: the link is to a file; give one of them")
    what: Shown = "file" if file is not None else "result" if result else "job"
    made = await client.create_link(job_id, what, path=file, expires_in=expires_in)
    if json:
        show.print_json(made)
        return
    typer.echo(made.url)
    if not quiet:
        shown = file or ("its result" if result else "the job and all that it left")
        show.print_message(f"it shows {shown} until {show.local(made.expires_at)}")


@on_server
async def ticket(
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="USER", help="Whose job it becomes.")
    ] = None,
    service: Annotated[
        str | None,
        typer.Option("--service", "-s", metavar="NAME", help="Default: the form says which."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field", metavar="NAME=TEXT", help="A field that is fixed; may be repeated."
        ),
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="SIZE", help="Of the upload: 100MB.")
    ] = None,
    return_to: Annotated[
        str | None,
        typer.Option("--return-to", metavar="URL", help="Page that a plain form is sent on to."),
    ] = None,
    expires_in: ExpiresIn = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Print an address to upload to once without a token.

    For portals, which give it to a browser. It is good for at most 24h, by default 15m.
    """
    fields = {}
    for text in field or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise BadArgument(f"--field {text}: write NAME=TEXT")
        fields[name] = value
    made = await client.create_ticket(
        user,
        service=service,
        expires_in=expires_in,
        max_bytes=max_bytes,
        fields=fields,
        return_to=return_to,
    )
    if json:
        show.print_json(made)
        return
    typer.echo(made.upload_url)
    if not quiet:
        show.print_message(f"it is good for one upload, until {show.local(made.expires_at)}")


@on_server
async def dashboard(
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Only print the address, do not open it.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Open the dashboard in the browser, logged in.

    The address that is printed logs in once, within a minute.
    """
    made = await client.login_link()
    if json:
        show.print_json(made)
        return
    typer.echo(made.url)
    opened = False
    if not no_open:
        from ferryman.dev import open_page

        opened = await asyncio.to_thread(open_page, made.url)
    if not quiet and made.expires_at is not None and not opened:
        show.print_message(f"it logs in once, until {show.local(made.expires_at)}")
