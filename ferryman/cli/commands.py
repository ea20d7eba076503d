"""The commands by name: where each is, and the first sentence of its help.

A command is imported when it is used; for the list of all, what is here is enough.
"""

from __future__ import annotations

from typing import Final, NamedTuple

JOBS: Final = "Jobs"
FOR_OPERATORS: Final = "For operators"
PROGRAMS: Final = "Programs"
OWN: Final = "This command line"


class Listed(NamedTuple):
    """A command, or a group of commands."""

    module: str
    """Of ``ferryman.cli``."""
    attribute: str
    """A function, or the Typer of a group."""
    about: str
    """The first sentence of its help."""
    section: str = JOBS
    help: str | None = None
    """The attribute with its help, where that is not the docstring of the function."""
    passed_on: bool = False
    """Its words are those of another program."""


COMMANDS: Final[dict[str, Listed]] = {
    "submit": Listed("submit", "submit", "Send a bundle; print the job's number."),
    "status": Listed("jobs", "status", "Show jobs."),
    "list": Listed("jobs", "list_jobs", "List jobs, newest first."),
    "wait": Listed("jobs", "wait_for_jobs", "Wait until jobs have ended."),
    "logs": Listed("attempts", "logs", "Print what jobs write, while they run, too."),
    "events": Listed("webhooks", "events", "Show what happened to a job, or to all jobs."),
    "files": Listed("files", "files", "List the files of a job, while it runs, too."),
    "download": Listed("results", "download", "Fetch the result, a ZIP, or some of its files."),
    "cancel": Listed("many", "cancel", "Cancel jobs."),
    "retry": Listed(
        "many",
        "retry_or_delete",
        "Run jobs again that failed or were cancelled.",
        help="RETRY_HELP",
    ),
    "delete": Listed(
        "many", "retry_or_delete", "Delete jobs with all that they left.", help="DELETE_HELP"
    ),
    "whoami": Listed("tokens", "whoami", "Show who you are to the server, and what you may do."),
    "usage": Listed("usage", "usage", "Show what a user may use, and what is left of it."),
    "link": Listed("browsers", "link", "Print an address that shows a job without a token."),
    "ticket": Listed("browsers", "ticket", "Print an address to upload to once without a token."),
    "dashboard": Listed("browsers", "dashboard", "Open the dashboard in the browser, logged in."),
    "schedule": Listed("schedules", "app", "Have a job made at each time of a cron line."),
    "deliveries": Listed("webhooks", "app", "List webhooks and their tries, and send one again."),
    "services": Listed("services", "app", "List services; pause, resume and empty them."),
    "audit": Listed(
        "audit", "audit", "Show who did what, from where, newest first.", FOR_OPERATORS
    ),
    "backup": Listed(
        "programs",
        "backup",
        "Copy what a server keeps, while it runs.",
        FOR_OPERATORS,
        passed_on=True,
    ),
    "restore": Listed(
        "programs",
        "restore",
        "Restore a backup into an empty folder.",
        FOR_OPERATORS,
        passed_on=True,
    ),
    "agents": Listed("agents", "app", "List agents; drain, retire or give one up.", FOR_OPERATORS),
    "token": Listed("tokens", "app", "Make, list, rotate and revoke tokens.", FOR_OPERATORS),
    "admin": Listed("admin", "app", "Verify, requeue, forget a user.", FOR_OPERATORS),
    "config": Listed(
        "config", "app", "Let a running server read its settings again.", FOR_OPERATORS
    ),
    "dev": Listed(
        "programs", "dev", "Run server and agent on this machine, to try them.", PROGRAMS
    ),
    "server": Listed(
        "programs",
        "server",
        "Run the server alone; see `ferryman server --help`.",
        PROGRAMS,
        passed_on=True,
    ),
    "agent": Listed(
        "programs",
        "agent",
        "Run an agent alone; see `ferryman agent --help`.",
        PROGRAMS,
        passed_on=True,
    ),
    "check": Listed(
        "doctor", "check", "Read a settings file as its programs do, before they start.", PROGRAMS
    ),
    "doctor": Listed(
        "doctor",
        "doctor",
        "Find what is wrong: server, token, agents, versions, host.",
        OWN,
    ),
    "completion": Listed(
        "completion", "completion", "Complete commands and options in bash, zsh and fish.", OWN
    ),
}
"""In the order of ``ferryman --help``."""
