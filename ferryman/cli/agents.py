"""Commands for operators, about the agents of a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.exits import FAILED
from ferryman.cli.options import Json, Server, on_server, run
from ferryman.errors import BadArgument
from ferryman.units import say_duration

if TYPE_CHECKING:
    from ferryman.agent_models import AgentAction, AgentDoc

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List agents; drain, retire or give one up.",
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", hidden=True)]
Message: TypeAlias = Annotated[
    str | None,
    typer.Option("--message", "-m", metavar="TEXT", help="Why; shown with the agent."),
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_HEADS: Final = ("AGENT", "STATE", "READY", "JOBS", "SLOTS", "ADDRESS", "MESSAGE")


@app.command("list")
@on_server
def list_agents(
    every: Annotated[
        bool,
        typer.Option("--all", help="Also those that were retired and are not in the settings."),
    ] = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """List the agents, and why some get no jobs."""

    async def work() -> int:
        async with server.client() as client:
            listed = await client.agents(every=every)
        if json:
            show.print_json_list(listed)
        elif not listed:
            show.print_message("the server has no agents")
        else:
            rows = [_row(agent) for agent in listed]
            show.print_table(_HEADS, rows, drop=("ADDRESS", "SLOTS", "JOBS"))
        return 0

    run(work())


@app.command("show")
@on_server
def show_agent(
    name: Name,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Show an agent."""

    async def work() -> int:
        async with server.client() as client:
            agent = await client.agent(name)
        if json:
            show.print_json(agent)
        else:
            for line in _details(agent):
                typer.echo(show.printable(line))
        return 0

    run(work())


@app.command()
@on_server
def drain(
    name: Name,
    message: Message = None,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Give an agent no new jobs.

    Those that it has go on to their end. `ferryman agents resume NAME` uses it again.
    """
    _change(server, name, "drain", message, json=json)


@app.command()
@on_server
def resume(
    name: Name,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Use an agent again that was drained, retired or lost."""
    _change(server, name, "resume", None, json=json)


@app.command()
@on_server
def retire(
    name: Name,
    yes: Yes = False,
    message: Message = None,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Stop using an agent that has no jobs.

    Drain it before, and wait.
    """
    ask = None if yes else "retire agent {}? It gets no jobs, and the server does not contact it"
    _change(server, name, "retire", message, json=json, ask=ask)


@app.command()
@on_server
def lost(
    name: Name,
    yes: Yes = False,
    message: Message = None,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Give an agent up: its jobs are tried again at once."""
    ask = "declare agent {} lost? Its attempts end now ({}), though they may still run there"
    _change(server, name, "lost", message, json=json, ask=None if yes else ask)


def _change(
    server: Server,
    name: str,
    action: AgentAction,
    message: str | None,
    *,
    json: bool,
    ask: str | None = None,
) -> None:
    """Do it, after a question where there is one to ask."""
    if ask is not None and not sys.stdin.isatty():
        raise BadArgument(f"agents {action} asks first: give --yes where there is no terminal")

    async def work() -> int:
        async with server.client() as client:
            if ask is not None:
                agent = await client.agent(name)
                question = ask.format(agent.name, _jobs(agent))
                if not typer.confirm(show.printable(question), err=True):
                    show.print_message("nothing was changed")
                    return FAILED
            agent = await client.change_agent(name, action, message)
        if json:
            show.print_json(agent)
        else:
            show.print_message("; ".join(_summary(agent)))
        return 0

    run(work())


def _summary(agent: AgentDoc) -> Iterator[str]:
    """What it is like now, as phrases."""
    yield f"agent {agent.name} is {agent.state}"
    if agent.message:
        yield agent.message
    if agent.jobs:
        yield f"it has {_jobs(agent)}"
    if agent.state == "active" and agent.trouble:
        yield agent.trouble


def _jobs(agent: AgentDoc) -> str:
    return "1 job" if agent.jobs == 1 else f"{agent.jobs} jobs"


def _row(agent: AgentDoc) -> tuple[str, ...]:
    return (
        agent.name,
        str(agent.state),
        "yes" if agent.up else "no",
        str(agent.jobs),
        "" if agent.slots is None else str(agent.slots),
        agent.address,
        agent.message or agent.trouble,
    )


def _details(agent: AgentDoc) -> Iterator[str]:
    message = f": {agent.message}" if agent.message else ""
    yield f"agent {agent.name} is {agent.state}{message}"
    yield f"  {agent.trouble or 'gets new jobs'}"
    kind = {"ferryman": "Ferryman agent", "": "agent"}.get(agent.kind, f"{agent.kind} client")
    at = f" at {agent.address}" if agent.address else ""
    version = f", version {agent.version}" if agent.version else ""
    yield f"  {kind}{at}{version}, id {agent.id}"
    if agent.labels:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(agent.labels.items()))
        yield f"  labels {labels}"
    slots = "" if agent.slots is None else f", {agent.slots} slots"
    yield f"  {_jobs(agent)}, {agent.running} running{slots}"
    if agent.unreachable_s is not None:
        yield f"  not reached for {say_duration(agent.unreachable_s)}"
    if agent.last_heard_at:
        yield f"  last reached {show.local(agent.last_heard_at)}"
