"""How a command ends: its exit code, what is wrong, and what to do next.

With ``--wait`` the exit code is the job's own; otherwise 0, 1, 2, and those of sysexits(3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from ferryman import errors
from ferryman.cli.show import print_error, print_message

if TYPE_CHECKING:
    from ferryman.models.jobs import JobDoc

FAILED: Final = 1
"""The job failed and has no exit code of its own; there is no such job or agent; it
cannot be cancelled; the agent cannot be changed like that."""
USAGE: Final = 2
BAD_BUNDLE: Final = 65
"""The bundle was refused; nothing of it was kept."""
UNAVAILABLE: Final = 69
"""The server cannot be reached, or what it needs is not installed here."""
CANNOT_WRITE: Final = 73
DAMAGED: Final = 74
NOT_UNDERSTOOD: Final = 76
TRY_LATER: Final = 75
NOT_ALLOWED: Final = 77
TIMEOUT: Final = 124
INTERRUPTED: Final = 130
"""By Ctrl-C; a job that was accepted goes on."""
CANCELLED: Final = 143
"""As of a process that was sent SIGTERM."""


class Interrupted(Exception):
    """Ctrl-C, after what it means for the job was said."""


class _End(NamedTuple):
    """What an error of this kind leads to."""

    kind: type[Exception]
    exit_code: int
    hint: str = ""
    """With a place for a command line."""
    words: str = ""
    """Of that command."""
    having: tuple[str, Any] = ("", None)
    """An attribute of the error, and its value."""
    code: str = ""
    """For programs, of what is no error of the SDK: those have codes of their own."""


_SERVER: Final = "--url or FERRYMAN_URL says which server; to find out more: {}"
_RENEWED: Final = "the server's operator makes a new one: ferryman token create"
_MISSING: Final = (
    "a token comes from --token-file FILE or FERRYMAN_TOKEN; "
    "the server's operator makes one: ferryman token create"
)
_ENDS: Final = (  # the first that fits
    _End(errors.BadArgument, USAGE),
    _End(errors.BadBundle, BAD_BUNDLE),
    _End(errors.Unreachable, UNAVAILABLE, _SERVER, "doctor"),
    _End(errors.NotUnderstood, NOT_UNDERSTOOD, _SERVER, "doctor"),
    _End(errors.NotAllowed, NOT_ALLOWED, _RENEWED, having=("status", 401)),
    _End(errors.NotAllowed, NOT_ALLOWED, "what your token is good for: {}", "whoami"),
    _End(errors.TryLater, TRY_LATER, having=("retry_after", None)),
    _End(errors.TryLater, TRY_LATER, "try again in {retry_after:g} s"),
    _End(errors.NotReady, TRY_LATER),
    *(
        _End(errors.NotFound, FAILED, f"{text}: {{}}", words, ("code", f"{what}_not_found"))
        for what, text, words in (
            ("job", "the jobs that you may see", "list"),
            ("agent", "the agents", "agents"),
            ("service", "the services", "services"),
            ("schedule", "the schedules", "schedule"),
            ("token", "the tokens", "token"),
        )
    ),
    _End(errors.NotFound, FAILED),
    _End(errors.NoResult, FAILED),
    _End(errors.AlreadyEnded, FAILED),
    _End(errors.Conflict, FAILED),
    _End(errors.Refused, BAD_BUNDLE, "the services: {}", "services", ("part", "service")),
    _End(errors.Refused, BAD_BUNDLE),
    _End(errors.BadDownload, DAMAGED),
    _End(errors.WaitedTooLong, TIMEOUT),
    _End(OSError, CANNOT_WRITE, code="file_error"),
    _End(Interrupted, INTERRUPTED, code="interrupted"),
    _End(typer.Abort, FAILED, code="not_confirmed"),
    _End(typer.TyperException, USAGE, code=errors.BadArgument.code),
    _End(Exception, FAILED, code=errors.FerrymanError.code),
)


def _end_of(problem: Exception) -> _End:
    return next(
        one
        for one in _ENDS
        if isinstance(problem, one.kind)
        and (not one.having[0] or getattr(problem, one.having[0], None) == one.having[1])
    )


def exit_code_for(problem: Exception) -> int:
    """The exit code for an error."""
    return _end_of(problem).exit_code


def hint_for(
    problem: errors.FerrymanError, command: Callable[[str], str], *, has_token: bool
) -> str | None:
    """A line with a command; None: the error says it all, or has its own.

    Args:
        command: the words of a command -> a command line that reaches the same server.
    """
    if getattr(problem, "__notes__", None):
        return None
    end = _end_of(problem)
    hint = _MISSING if end.hint is _RENEWED and not has_token else end.hint
    return hint.format(command(end.words), **vars(problem)) or None


def report(problem: Exception, *, as_json: bool) -> int:
    """Say what is wrong; returns the exit code."""
    if _is_help(problem) and not as_json:
        typer.echo(problem, err=True)
        return USAGE
    message = _message(problem)
    hints = [*_usage_hints(problem), *getattr(problem, "__notes__", ())]
    end = _end_of(problem)
    if as_json:
        code = getattr(problem, "code", None) if not end.code else end.code
        error: dict[str, Any] = {"code": code or errors.FerrymanError.code, "message": message}
        error["hint"] = "\n".join(hints) or None
        if (request_id := getattr(problem, "request_id", None)) is not None:
            error["request_id"] = request_id
        typer.echo(json.dumps({"error": error}), err=True)
    else:
        print_error(message)
        for hint in hints:
            print_message(hint)
    return end.exit_code


def asked_for_json(words: Sequence[str]) -> bool:
    """Whether errors are to be for programs; also where the rest of the words is wrong."""
    end = words.index("--") if "--" in words else len(words)
    return "--json" in words[:end]


def _message(problem: Exception) -> str:
    match problem:
        case Interrupted():
            return "interrupted"
        case typer.Abort():
            return "nothing was done"
        case _ if _is_help(problem):
            return "a command is missing"
        case typer.TyperException():
            return _usage_message(problem)
        case OSError() if problem.filename is not None and problem.strerror:
            # The file and the reason, without the number.
            return f"{problem.filename}: {problem.strerror}"
    return str(problem)


def _is_help(problem: Exception) -> bool:
    """Whether it is the help, in place of a command that is missing."""
    return type(problem).__name__ == "NoArgsIsHelpError"


def _usage_message(problem: Any) -> str:
    """What is wrong with the words, with the nearest name where one is near."""
    nearest = getattr(problem, "possibilities", None) or ()
    text = problem.message if nearest else problem.format_message()
    text = f"{text[:1].lower()}{text[1:]}".removesuffix(".")
    return f"{text}; did you mean {' or '.join(sorted(nearest))}?" if nearest else text


def _usage_hints(problem: Any) -> list[str]:
    context = getattr(problem, "ctx", None)
    if not isinstance(problem, typer.TyperException) or context is None:
        return []
    return [f"what it takes: {context.command_path} -h"]


def exit_code_of_jobs(jobs: Iterable[JobDoc]) -> int:
    """That of the first job that did not complete; 0: all did."""
    return next((code for code in map(exit_code_of_job, jobs) if code), 0)


def exit_code_of_job(job: JobDoc) -> int:
    """The exit code of ``--wait`` for a job that has ended."""
    from ferryman.states import JobState, Reason

    if job.status is JobState.COMPLETED:
        return 0
    if job.status is JobState.CANCELLED:
        return CANCELLED
    if job.reason in {Reason.TIMEOUT, Reason.QUEUE_TIMEOUT, Reason.HEARTBEAT_TIMEOUT}:
        return TIMEOUT
    if job.exit_code:
        return job.exit_code & 0xFF or FAILED
    return 0 if job.status is JobState.CLEANED and job.reason is None else FAILED
