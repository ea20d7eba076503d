"""``ferryman config reload``: a running server reads its settings again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, Server, on_server

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.settings_models import SettingChange

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Let a running server read its settings again.",
)

_TAKEN_OUT: Final = "taken out"
"""As the server says it of a table."""


@app.command("reload")
@on_server
async def reload_settings(json: Json = False, *, server: Server, client: Client) -> None:
    """Let the server read its settings again, and say what has changed.

    It is as SIGHUP. The server reads the file and the variables that it was started with. What is
    wrong is said, and changes nothing.
    """
    done = await client.reload_settings()
    if json:
        show.print_json(done)
        return
    for one in done.changed:
        typer.echo(show.printable(_changed(one)))
    for one in done.waiting:
        typer.echo(show.printable(f"{_changed(one)}  (restart to apply)"))
    for left in done.left:
        show.print_message(str(left))
        for how in (f"services move {left.service} NAME", f"cancel --all --service {left.service}"):
            show.print_message(f"  {server.command(how)}")
    if not done.changed and not done.waiting:
        show.print_message("nothing has changed")


def _changed(one: SettingChange) -> str:
    if one.old is None:
        return f"{one.key}: {one.new}"
    if one.new is None and one.old.startswith(_TAKEN_OUT):
        return f"{one.key}: {one.old}"
    return f"{one.key}: {one.old} -> {one.new or 'not set'}"
