"""``ferryman`` itself: its commands by name, each imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Jobs": {
        "submit": ("submit:submit", "Send a bundle; print the job's number."),
        "status": ("jobs:status", "Show jobs."),
        "list": ("jobs:list_jobs", "List jobs, newest first."),
        "wait": ("jobs:wait_for_jobs", "Wait until jobs have ended."),
        "logs": ("results:logs", "Print what jobs write, while they run, too."),
        "events": ("events:events", "Show what happened to a job, or to all jobs."),
        "files": ("results:files", "List the files of a job, while it runs, too."),
        "download": ("results:download", "Fetch the result, a ZIP, or some of its files."),
        "cancel": ("jobs:cancel", "Cancel jobs."),
        "retry": ("jobs:retry", "Run jobs again that failed or were cancelled."),
        "delete": ("jobs:delete", "Delete jobs with all that they left."),
        "whoami": ("tokens:whoami", "Show who you are to the server, and what you may do."),
        "usage": ("tokens:usage", "Show what a user may use, and what is left of it."),
        "link": ("links:link", "Print an address that shows a job without a token."),
        "ticket": ("links:ticket", "Print an address to upload to once without a token."),
        "dashboard": ("links:dashboard", "Open the dashboard in the browser, logged in."),
        "schedule": ("schedules:app", "Have a job made at each time of a cron line."),
        "webhook-secret": (
            "events:webhook_secret",
            "Print what signs your jobs' webhooks, or replace it.",
        ),
        "services": ("services:app", "List services; pause, resume and empty them."),
    },
    "For operators": {
        "audit": ("tokens:audit", "Show who did what, from where, newest first."),
        "backup": ("programs:backup", "Copy what a server keeps, while it runs."),
        "restore": ("programs:restore", "Restore a backup into an empty folder."),
        "agents": ("agents:app", "List agents; drain, retire or give one up."),
        "token": ("tokens:app", "Make, list, rotate and revoke tokens."),
        "admin": ("admin:app", "Verify, forget a user."),
        "config": ("admin:settings", "Let a running server read its settings again."),
    },
    "Programs": {
        "dev": ("programs:dev", "Run server and agent on this machine, to try them."),
        "server": ("programs:server", "Run the server alone; see `ferryman server --help`."),
        "agent": ("programs:agent", "Run an agent alone; see `ferryman agent --help`."),
        "check": ("doctor:check", "Check a settings file before its programs start."),
    },
    "This command line": {
        "doctor": ("doctor:doctor", "Find what is wrong: server, token, agents, versions, host."),
        "completion": (
            "completion:completion",
            "Complete commands and options in bash, zsh and fish.",
        ),
    },
}
"""Heading -> command -> where it is, and the first sentence of its help: that is enough for the
list of all."""
COMMANDS: Final = {name: one for section in SECTIONS.values() for name, one in section.items()}
PASSED_ON: Final[dict[str, Any]] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
"""Of a command whose words are those of another program."""
_PROGRAMS: Final = frozenset({"backup", "restore", "server", "agent"})
_HELP: Final = frozenset({"-h", "--help"})
_DEFAULT: Final = "list"
"""What a group of commands does where none of them is named."""
COMMON: Final = {"--url": True, "--token": True, "--token-file": True, "--json": False}
"""Options of nearly all commands, and whether a value follows."""


def command_first(words: Sequence[str]) -> list[str]:
    """The same command line with these options behind the command, if they stand before it."""
    moved: list[str] = []
    names: list[str] = []
    at = 0
    while at < len(words) and len(names) < 2 and words[at] != "--":
        name, equals, _ = words[at].partition("=")
        if name in COMMON:
            end = at + (2 if COMMON[name] and not equals else 1)
            moved += words[at:end]
            at = end
        elif words[at].startswith("-"):
            break
        else:
            names.append(words[at])
            at += 1
    rest = words[at:]
    return [*names, *moved, *rest] if names or rest else []


class Loaded(Mapping[str, Any]):
    """Commands by name, imported and built when they are first asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(name, COMMANDS[name][0])
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _build(name: str, where: str) -> Any:
    module, _, attribute = where.partition(":")
    found = getattr(importlib.import_module(f"ferryman.cli.{module}"), attribute)
    around = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name, cls=Group)
    else:
        settings = PASSED_ON if name in _PROGRAMS else None
        around.command(name, context_settings=settings)(found)
    return get_group(around).commands[name]


class Group(TyperGroup):
    """Commands, for whose help nothing is imported that only their options need."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if _DEFAULT in self.commands and (not args or args[0].startswith("-")):
            args = args if _HELP.intersection(args) else [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False  # the usual None is converted, by importing Pydantic
        return option


class Root(Group):
    """All commands, under the headings of their sections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = Loaded()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return TyperGroup.parse_args(self, ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            rows = [(name, short_help(name, about, width)) for name, (_, about) in section.items()]
            with formatter.section(title):
                formatter.write_dl(rows)


def short_help(name: str, about: str, width: int) -> str:
    """In at most so many characters."""
    return TyperCommand(name, help=about).get_short_help_str(width)


app = typer.Typer(
    cls=Root,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text: server and agent look the same, and rich is slow to load
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0, or with --wait the job's own; 2 usage, 65 bundle refused, "
    "69 unreachable, 75 try later, 77 not allowed, 124 timeout, 130 interrupted, 143 cancelled.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from ferryman import __version__

        typer.echo(f"ferryman {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Carry bundles of files to compute hosts and bring the results back.

    A bundle is any files plus a run.sh. See `ferryman submit --help`.

    --url, --token and --token-file say which server; so do the variables FERRYMAN_URL and
    FERRYMAN_TOKEN. --json is for programs: it prints documents, and errors as one line of JSON on
    stderr. These four may stand before the command, too.
    """
