"""Options of several commands, and the client that these options describe."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, get_args

import typer

from ferryman.cli import show
from ferryman.cli.exits import Interrupted, hint_for
from ferryman.defaults import DEFAULT_URL, check_url
from ferryman.errors import BadArgument, FerrymanError
from ferryman.units import parse_duration

if TYPE_CHECKING:
    from ferryman.client import Client

T = TypeVar("T", bound=Callable[..., Any])

_MAX_TOKEN: Final = 4096
"""Bytes; a longer first line is no token."""


def token_of(path: Path) -> str:
    """The first line of a file.

    Raises:
        BadArgument: it cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            line = file.read(_MAX_TOKEN + 1).partition(b"\n")[0]
        token = line.decode().strip()
    except OSError as problem:
        why = problem.strerror or problem
        raise BadArgument(f"--token-file {path}: {why}") from problem
    except UnicodeDecodeError as problem:
        raise BadArgument(f"--token-file {path}: it is no text") from problem
    if not token:
        raise BadArgument(f"--token-file {path}: its first line is empty")
    if len(line) > _MAX_TOKEN:
        raise BadArgument(f"--token-file {path}: its first line is too long for a token")
    return token


USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def login_name() -> str | None:
    """Who is logged in, if that can be a user's name on a server."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a uid without an account; Windows without USERNAME
        return None
    return name if USER.fullmatch(name) else None


async def usual_user(client: Client, *, has_token: bool) -> str | None:
    """Whose jobs are meant where nobody says it: those of FERRYMAN_USER, or else of the user that
    the token is for, or else of the login name."""
    named = os.environ.get("FERRYMAN_USER")
    if named or not has_token:
        return named or login_name()
    return (await client.whoami()).user_id or login_name()


class _Last(int):
    """Stands for a number that only the server knows."""


LAST: Final = _Last(-1)


def is_meant(given: dict[str, Any]) -> bool:
    """Whether some argument of a command is ``last``."""
    return any(
        value is LAST or (isinstance(value, list | tuple) and any(one is LAST for one in value))
        for value in given.values()
    )


def replaced(given: dict[str, Any], number: int) -> dict[str, Any]:
    """The same arguments, with this number in its place."""

    def put(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(put, value))
        return number if value is LAST else value

    return {name: put(value) for name, value in given.items()}


async def newest(client: Client, *, has_token: bool) -> int:
    """The number of the newest job of the user who is meant; of a batch the parent's.

    Raises:
        BadArgument: there is none.
    """
    user = await usual_user(client, has_token=has_token)
    if user is None:
        raise BadArgument("last: whose job? FERRYMAN_USER says it")
    async for job in client.jobs(user=user, limit=1):
        return job.parent_id or job.id
    raise BadArgument(
        f"last: user {user} has no jobs at {client.url}; FERRYMAN_USER=NAME says whose are meant"
    )


RETRY_FOR_S: Final = 2.0
"""A person waits for the command."""

_Url: TypeAlias = Annotated[
    str, typer.Option("--url", envvar="FERRYMAN_URL", help="The server.", metavar="URL")
]
_Token: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="FERRYMAN_TOKEN",
        help="If the server asks for one. Other users of this machine can see it here.",
        metavar="TOKEN",
    ),
]
_TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--token-file", help="A file with the token in its first line.", metavar="FILE"),
]
_WHICH: Final = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    for name, default, kind in (
        ("url", DEFAULT_URL, _Url),
        ("token", None, _Token),
        ("token_file", None, _TokenFile),
    )
)
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="No messages on stderr but errors.")
]
Output: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE|DIR",
        help="Where the ZIP goes: a file, or a folder (then it is called job-ID.zip).",
    ),
]


def number(text: str) -> int:
    """The number of a job or a schedule."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise typer.BadParameter(f"{text!r} is not a number such as 17")
    return int(text)


def job_id(text: str) -> int:
    """The number of a job, or ``last``, which :func:`on_server` replaces."""
    if text.lower() == "last":
        return LAST
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise typer.BadParameter(f"{text!r} is not the number of a job, nor last")
    return int(text)


JobId: TypeAlias = Annotated[
    int,
    # hidden: the help would show a type of Python's
    typer.Argument(metavar="ID", parser=job_id, hidden=True),
]
CancelOnInterrupt: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--cancel-on-interrupt", help="Ctrl-C cancels it; otherwise it goes on without you."
    ),
]
JobIds: TypeAlias = Annotated[list[int], typer.Argument(metavar="ID", parser=job_id, hidden=True)]


AnyJobIds: TypeAlias = Annotated[
    list[int] | None, typer.Argument(metavar="ID", parser=job_id, hidden=True)
]
All: TypeAlias = Annotated[
    bool, typer.Option("--all", help="All jobs that fit the options; without any, all you may see.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OfUser: TypeAlias = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help="Those of this user.")
]
OfService: TypeAlias = Annotated[
    str | None, typer.Option("--service", "-s", metavar="NAME", help="Those of this service.")
]


def _chosen(name: str, metavar: str, about: str) -> Any:
    return Annotated[str | None, typer.Option(name, metavar=metavar, help=about)]


def _only(name: str, about: str) -> Any:
    return Annotated[bool, typer.Option(name, help=about)]


FILTERS: Final[dict[str, Any]] = {
    "user": OfUser,
    "service": OfService,
    "state": _chosen("--state", "STATE", "Those in this state."),
    "tag": _chosen("--tag", "TAG", "Those with this tag."),
    "reason": _chosen("--reason", "CODE", "Those that failed for this reason."),
    "dead_letter": _only("--dead-letters", "Those that failed for good and are kept."),
    "text": _chosen(
        "--text", "TEXT", "Those with this number, or with it in the name, a tag or the message."
    ),
    "since": _chosen("--since", "TIME", "Those uploaded since; 2h: two hours ago."),
    "parent": Annotated[
        int | None,
        typer.Option("--parent", metavar="ID", parser=job_id, help="The children of this job."),
    ],
    "batch": _only("--batches", "Only parents: jobs with children."),
    "top_level": _only("--top-level", "Without the children of batches."),
}
"""Options that choose among jobs, by their names in :class:`ferryman.upload.JobFilter`."""


def with_options(options: Mapping[str, Any]) -> Callable[[T], T]:
    """A command that has these options, too, and gets them as its ``**`` arguments.

    Args:
        options: name of the argument -> annotation of the option.
    """

    def add(command: T) -> T:
        signature = inspect.signature(command, eval_str=True, locals={"Client": object})
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if get_args(kind)[0] is bool else None,
                annotation=kind,
            )
            for name, kind in options.items()
        ]
        command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return command

    return add


def whole(least: int, most: int | None = None) -> Callable[[str | int], int]:
    """Reads a whole number in a range; typer's own ranges are shown as formulas in the help."""

    def read(given: str | int) -> int:  # a default comes as it is
        text = str(given)
        number = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
        if number is None or number < least or (most is not None and number > most):
            range_ = f"at least {least}" if most is None else f"{least} to {most}"
            raise typer.BadParameter(f"{text!r} should be a number, {range_}")
        return number

    return read


Limit: TypeAlias = Annotated[
    int,
    typer.Option("--limit", "-n", parser=whole(0), metavar="N", help="At most so many; 0: all."),
]


_TLS: Final = ("CA_FILE", "CLIENT_CERT", "CLIENT_KEY")
"""Variables, without FERRYMAN_, that name files in PEM form."""


def seconds(text: str) -> float:
    """A duration such as 1h30m."""
    try:
        return parse_duration(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


Attempt: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--attempt",
        parser=whole(1),
        metavar="N",
        help="The attempt with this number, failed ones too.",
    ),
]


@dataclass(frozen=True, slots=True)
class Server:
    """Which server, and how to say so again in a hint."""

    url: str
    token: str | None

    @classmethod
    def from_options(cls, url: str, token: str | None, token_file: Path | None) -> Server:
        """From the options.

        Raises:
            BadArgument: no URL, or no token.
        """
        check_url(url)
        return cls(url, token if token_file is None else token_of(token_file))

    def client(self) -> Client:
        """A client that does not try for long."""
        from ferryman.host_certificates import import_aiohttp

        import_aiohttp()
        from ferryman.client import Client

        certificates = {}
        if self.url.lower().startswith("https:"):
            certificates = {name: os.environ.get(f"FERRYMAN_{name}") or None for name in _TLS}
        return Client(
            self.url,
            token=self.token,
            retry_for=RETRY_FOR_S,
            ca_file=certificates.get("CA_FILE"),
            client_cert=certificates.get("CLIENT_CERT"),
            client_key=certificates.get("CLIENT_KEY"),
        )

    async def user_of(self, client: Client, named: str | None) -> str:
        """The user that ``--user`` names, or else the one that is meant without it.

        Raises:
            BadArgument: nobody is.
        """
        user = named or await usual_user(client, has_token=self.token is not None)
        if user is None:
            raise BadArgument("--user is missing: your login name cannot be used as one")
        return user

    def command(self, words: str) -> str:
        """A command line that reaches the same server."""
        return f"ferryman {words}" + ("" if self.url == DEFAULT_URL else f" --url {self.url}")


def on_server(command: Callable[..., Any]) -> Callable[..., None]:
    """A command of a server, with the options that say which one.

    It takes ``server``, or is an ``async def`` that takes ``client``, or both; what it returns is
    then the exit code, None: 0.
    """
    # The client is imported by commands that use it only: that takes time.
    signature = inspect.signature(command, eval_str=True, locals={"Client": object})
    own = [one for one in signature.parameters.values() if one.name not in ("server", "client")]

    def run_command(**given: Any) -> None:
        import asyncio

        server = Server.from_options(*(given.pop(option.name) for option in _WHICH))
        try:
            if is_meant(given):
                given = replaced(given, asyncio.run(_newest(server)))
            if "server" in signature.parameters:
                given["server"] = server
            if "client" in signature.parameters:
                run(_with_client(command, given, server))
            else:
                command(**given)
        except FerrymanError as problem:
            hint = hint_for(problem, server.command, has_token=server.token is not None)
            if hint is not None:
                problem.add_note(hint)
            raise

    run_command.__name__, run_command.__doc__ = command.__name__, command.__doc__
    run_command.__signature__ = inspect.Signature([*own, *_WHICH])  # type: ignore[attr-defined]
    return run_command


async def _with_client(command: Callable[..., Any], given: dict[str, Any], server: Server) -> int:
    async with server.client() as client:
        return await command(**given, client=client) or 0


async def _newest(server: Server) -> int:
    async with server.client() as client:
        return await newest(client, has_token=server.token is not None)


def run(work: Coroutine[Any, Any, int]) -> None:
    """Run a command to its end.

    Raises:
        typer.Exit: with its code.
        Interrupted: by Ctrl-C.
    """
    import asyncio

    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        raise Interrupted from None
    if code:
        raise typer.Exit(code)


def state_named(text: str | None) -> str | None:
    """The state that is spelled so, in whatever case.

    Raises:
        BadArgument: there is none.
    """
    from ferryman.states import JobState

    for state in JobState:
        if text is None or text.lower() == state.lower():
            return None if text is None else state
    states = {state.lower(): state for state in JobState}
    nearest = get_close_matches(str(text).lower(), states, 1)
    meant = f"did you mean {states[nearest[0]]}? " if nearest else ""
    raise BadArgument(f"--state {text}: {meant}there are {', '.join(JobState)}")


def ask(question: str, command: str) -> None:
    """Ask before what cannot be taken back.

    Raises:
        BadArgument: there is no terminal.
        typer.Abort: the answer is no.
    """
    if not sys.stdin.isatty():
        raise BadArgument(f"{command} asks first: give --yes where there is no terminal")
    typer.confirm(show.printable(question), abort=True, err=True)
