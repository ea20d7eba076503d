"""Commands for operators, about the agents of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, Quiet, Yes, ask, on_server, with_options
from ferryman.errors import NotFound
from ferryman.units import say_duration

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models.operators import AgentAction, AgentDoc

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List agents; drain, retire or give one up."
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", hidden=True)]
Message: TypeAlias = Annotated[
    str | None, typer.Option("--message", "-m", metavar="TEXT", help="Why; shown with the agent.")
]
_HEADS: Final = ("AGENT", "STATE", "READY", "JOBS", "RUNNING", "SLOTS", "LOAD", "ADDRESS", "WHY")


@app.command("list")
@on_server
async def list_agents(
    retired: Annotated[
        bool,
        typer.Option("--retired", help="Also those that were retired and are not in the settings."),
    ] = False,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """List the agents, and why some get no jobs."""
    listed = await client.agents(retired=retired)
    drop = ("ADDRESS", "LOAD", "SLOTS", "RUNNING", "JOBS")
    show.emit_list(listed, _HEADS, _row, drop=drop, json=json, none="the server has no agents")


@app.command("show")
@on_server
async def show_agent(name: Name, json: Json = False, *, client: Client) -> None:
    """Show an agent."""
    agent = await _agent(client, name)
    if json:
        show.print_json(agent)
    else:
        show.print_lines(_details(agent))


async def _agent(client: Client, name: str) -> AgentDoc:
    """By its name or id."""
    for one in await client.agents(retired=True):
        if name in (one.name, one.id):
            return one
    raise NotFound(404, "agent_not_found", f"this server knows no agent {name[:64]}")


def _add(action: AgentAction, about: str, question: str = "") -> None:
    """Add the command that changes an agent so.

    Args:
        question: asked before, with the agent's name and jobs.
    """
    options: dict[str, Any] = {"yes": Yes} if question else {}
    options |= {} if action == "resume" else {"message": Message}

    @with_options(options)
    async def command(
        name: Name, quiet: Quiet = False, json: Json = False, *, client: Client, **given: Any
    ) -> None:
        if question and not given["yes"]:
            agent = await _agent(client, name)
            ask(question.format(agent.name, _jobs(agent)), f"agents {action}")
        agent = await client.change_agent(name, action, given.get("message"))
        show.emit(agent, "; ".join(_summary(agent)), json=json, quiet=quiet)

    command.__name__, command.__doc__ = action, about
    app.command(action)(on_server(command))


_add(
    "drain",
    """Give an agent no new jobs.

    Those that it has go on to their end. `ferryman agents resume NAME` uses it again.
    """,
)
_add("resume", "Use an agent again that was drained, retired or lost.")
_add(
    "retire",
    """Stop using an agent that has no jobs.

    Drain it before, and wait.
    """,
    "retire agent {}? It gets no jobs, and the server does not contact it",
)
_add(
    "lost",
    "Give an agent up: its jobs are tried again at once.",
    "declare agent {} lost? Its attempts end now ({}), though they may still run there",
)


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


def _state(agent: AgentDoc) -> str:
    """What became of it. One that was taken out of the settings is not active, whatever it was."""
    removed = agent.state == "active" and not agent.in_settings
    return "not in settings" if removed else str(agent.state)


def _row(agent: AgentDoc) -> tuple[str, ...]:
    return (
        agent.name,
        _state(agent),
        "yes" if agent.up else "no",
        str(agent.jobs),
        "?" if agent.running is None else str(agent.running),
        "" if agent.slots is None else str(agent.slots),
        "" if agent.load is None else f"{agent.load:.0f} %",
        agent.address,
        "; ".join(_why(agent)),
    )


def _why(agent: AgentDoc) -> list[str]:
    """Why it gets no jobs, and what is wrong with it although it does."""
    first = agent.message or agent.trouble
    return [first, *agent.warnings] if first else agent.warnings


def _details(agent: AgentDoc) -> Iterator[str]:
    message = f": {agent.message}" if agent.message else ""
    yield f"agent {agent.name} is {_state(agent)}{message}"
    yield f"  {agent.trouble or 'gets new jobs'}"
    for warning in agent.warnings:
        yield f"  {warning}"
    kind = {"ferryman": "Ferryman agent", "": "agent"}.get(agent.kind, f"{agent.kind} client")
    at = f" at {agent.address}" if agent.address else ""
    version = f", version {agent.version}" if agent.version else ""
    yield f"  {kind}{at}{version}, id {agent.id}"
    if agent.labels:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(agent.labels.items()))
        yield f"  labels {labels}"
    slots = "" if agent.slots is None else f", {agent.slots} slots"
    running = "" if agent.running is None else f", {agent.running} running"
    load = "" if agent.load is None else f", load {agent.load:.0f} %"
    yield f"  {_jobs(agent)}{running}{slots}{load}"
    for service, most in agent.max_runs.items():
        yield f"  at most {most} of {service} at once"
    if agent.unreachable_s is not None:
        yield f"  not reached for {say_duration(agent.unreachable_s)}"
    if agent.last_heard_at:
        yield f"  last reached {show.local(agent.last_heard_at)}"
