"""``ferryman config check``: reads settings as server and agent do, without starting them."""

from __future__ import annotations

import json as json_
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman.cli import show
from ferryman.cli.exits import USAGE
from ferryman.cli.options import Json, Server, on_server
from ferryman.cli.programs import require_server_extra
from ferryman.errors import BadArgument

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.settings_models import SettingChange

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check settings, and let a running server use them.",
)

_TAKEN_OUT: Final = "taken out"
"""As the server says it of a table."""
_AGENTS: Final = "agent"
_PROGRAMS: Final = {"server": "server.maintenance", _AGENTS: "client_agent"}


@dataclass(frozen=True, slots=True)
class Checked:
    """What one of the programs says of its settings."""

    program: str
    ok: bool
    problems: list[str] = field(default_factory=list)
    """Each names the file and the key."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What they amount to; no secrets."""


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", hidden=True, show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Check a settings file (TOML), and the variables that win over it.

    FILE may have the tables of a server, of an agent, or of both; default: FERRYMAN_CONFIG, or the
    files in /etc/ferryman, or variables alone. The exit code is 2 where something is wrong. A
    server reads its file again at `ferryman config reload`, so a check before that is worth it.
    """
    require_server_extra()
    checked = [_checked(program, file) for program in _meant(file)]
    if json:
        show.print_documents([{"programs": [asdict(one) for one in checked]}])
    else:
        for one in checked:
            _print(one)
    if not all(one.ok for one in checked):
        raise typer.Exit(USAGE)


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


def _meant(file: Path | None) -> Iterator[str]:
    """The programs that the file has tables for; without a file both."""
    variable = os.environ.get("FERRYMAN_CONFIG")
    named = file or (Path(variable) if variable else None)
    if named is None:
        yield from _PROGRAMS
        return
    try:
        tables = tomllib.loads(named.read_text()).keys()
    except OSError as problem:
        raise BadArgument(f"{named}: {problem.strerror}") from problem
    except ValueError:  # the program says where
        tables = {"server": None}.keys()
    if tables != {_AGENTS}:
        yield "server"
    if _AGENTS in tables:
        yield _AGENTS


def _checked(program: str, file: Path | None) -> Checked:
    config = [] if file is None else ["--config", str(file)]
    words = [*config, "settings"] if program == _AGENTS else ["settings", *config]
    done = subprocess.run(
        [sys.executable, "-P", "-m", _PROGRAMS[program], *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return Checked(program, True, settings=json_.loads(done.stdout))
    lines = done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"]
    lines[0] = lines[0].removeprefix(f"ferryman {program}: ").removeprefix("ferryman: ")
    return Checked(program, False, problems=lines)


def _print(checked: Checked) -> None:
    if not checked.ok:
        for line in checked.problems:
            show.print_message(f"{checked.program}: {line}")
        return
    settings = dict(checked.settings)
    doubts = settings.pop("warnings", [])
    facts = ", ".join(f"{name} {_said(value)}" for name, value in settings.items())
    typer.echo(show.printable(f"{checked.program}: fine: {facts}"))
    for line in doubts:
        show.print_message(f"{checked.program}: warning: {line}")


def _said(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
