"""How an error ends a command: what is wrong and what to do next on stderr, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import typer

from ferryman import errors
from ferryman.cli.exits import FAILED, USAGE, Interrupted, exit_code_for
from ferryman.cli.show import print_error, print_message

_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (Interrupted, "interrupted"),
    (typer.Abort, "not_confirmed"),
    (typer.TyperException, errors.BadArgument.code),
    (OSError, "file_error"),
)
"""For programs, of what is no error of the SDK: those have codes of their own."""


def report(problem: Exception, *, as_json: bool) -> int:
    """Say what is wrong; returns the exit code."""
    if _is_help(problem) and not as_json:
        typer.echo(problem, err=True)
        return USAGE
    message, hints = _message(problem), [*_usage_hints(problem), *_notes(problem)]
    if as_json:
        error = {"code": _code(problem), "message": message, "hint": "\n".join(hints) or None}
        request_id = getattr(problem, "request_id", None)
        known = {} if request_id is None else {"request_id": request_id}
        typer.echo(json.dumps({"error": error | known}), err=True)
    else:
        print_error(message)
        for hint in hints:
            print_message(hint)
    return _exit_code(problem)


def asked_for_json(words: Sequence[str]) -> bool:
    """Whether errors are to be for programs; also where the rest of the words is wrong."""
    end = words.index("--") if "--" in words else len(words)
    return "--json" in words[:end]


def _code(problem: Exception) -> str:
    if isinstance(problem, errors.FerrymanError):
        return problem.code or errors.FerrymanError.code
    return next(code for kind, code in _CODES if isinstance(problem, kind))


def _exit_code(problem: Exception) -> int:
    if isinstance(problem, typer.Abort):
        return FAILED
    if isinstance(problem, typer.TyperException):
        return USAGE
    return exit_code_for(problem)


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


def _notes(problem: Exception) -> Sequence[str]:
    return getattr(problem, "__notes__", ())
