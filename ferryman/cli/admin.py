"""Rare work of operators: on a server's data folder, or through its API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.app import PASSED_ON
from ferryman.cli.exits import TRY_LATER
from ferryman.cli.options import Json, Server, Yes, ask, on_server
from ferryman.cli.programs import run_program
from ferryman.errors import FerrymanError
from ferryman.units import say_count

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models.operators import SettingChange

_COMMAND: Final = "admin forget-user"
_RENAMED: Final = "audit"
_KINDS: Final = {
    "jobs": "job",
    "schedules": "schedule",
    "deliveries": "webhook delivery",
    "keys": "idempotency key",
    "tokens": "token",
    "uploaded": "daily upload count",
    "daily_usage": "daily usage count",
}
"""What of a user is counted, in words."""

DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Verify, forget a user.")


@app.command(
    "verify",
    help="On the data folder: check every file, digest and row.",
    context_settings=PASSED_ON,
)
def _verify(context: typer.Context) -> NoReturn:
    run_program("server.maintenance", ["admin", "verify", *context.args])


@app.command("forget-user")
@on_server
async def forget_user(
    user: Annotated[str, typer.Argument(metavar="USER", hidden=True)],
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    *,
    client: Client,
) -> int:
    """Through the server: remove all data of a user.

    A report says what. By operators with the scope admin: tokens end, jobs are
    cancelled and deleted with all that they left, on the agents too; in the audit trail another
    name stands in place of the user's. What is interrupted goes on when it is called again.

    Exit codes: 1 nothing is known of the user; 75 jobs are left whose agent cannot be reached.
    """
    if dry_run or not yes:
        known = await client.forget_user(user, dry_run=True)
        if not any(known.found.values()):
            raise _nothing_known(user)
        text = _counts(known.found, "would be given")
        if dry_run:
            if json:
                show.print_json(known)
            else:
                show.print_message(f"{user}: {text}")
            return 0
        ask(f"remove all data of user {user}, {text}? It cannot be brought back", _COMMAND)
    report = await client.forget_user(user)
    if json:
        show.print_json(report)
    elif report.removed:
        show.print_message(f"{user}: removed {_counts(report.removed, 'were given')}")
    for job in () if json else report.waiting:
        show.print_message(f"  job {job.id} is not gone yet: {job.why}")
    for line in () if json else report.kept:
        show.print_message(f"  kept: {line}")
    if report.done and not report.removed:
        raise _nothing_known(user)
    return 0 if report.done else TRY_LATER


def _counts(counts: Mapping[str, int], given: str) -> str:
    """``3 jobs, 1 token``, and how many entries of the audit trail stay with another name."""
    said = [say_count(counts[kind], what) for kind, what in _KINDS.items() if counts.get(kind)]
    text = ", ".join(said) or "nothing"
    renamed = counts.get(_RENAMED)
    return f"{text}; {say_count(renamed, 'audit entry')} {given} another name" if renamed else text


def _nothing_known(user: str) -> FerrymanError:
    problem = FerrymanError(f"nothing is known of user {user}")
    problem.add_note("is the name right? Whoever is forgotten already is not known any more")
    return problem


settings = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Let a running server read its settings again.",
)

_TAKEN_OUT: Final = "taken out"
"""As the server says it of a table."""


@settings.command("reload")
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
