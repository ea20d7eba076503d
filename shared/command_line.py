"""How a program of ours ends where the words of its command line are wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import typer
from typer.main import get_command

USAGE: Final = 2
UNAVAILABLE: Final = 69
CANNOT_CREATE: Final = 73
DAMAGED: Final = 74
INTERRUPTED: Final = 130
_NO_NUMBER: Final = re.compile(r"Input should be a valid integer.*")
"""Typer's words, which are Pydantic's."""


def run_command(program: typer.Typer, name: str, words: Sequence[str]) -> NoReturn:
    """Run a command to its end; what is wrong with its words is said as ``ferryman`` says it.

    Args:
        name: of the program, as in ``ferryman server``.
        words: its arguments. With ``--json`` among them errors are JSON, too.
    """
    command: Any = get_command(program)
    try:
        code = command.main([*words], prog_name=name, standalone_mode=False)
    except typer.Abort:
        say(name, words, "interrupted", "interrupted")
        code = INTERRUPTED
    except typer.TyperException as problem:
        context: Any = getattr(problem, "ctx", None)
        path = name if context is None else context.command_path
        say(name, words, "bad_argument", _message(problem), f"what it takes: {path} -h")
        code = USAGE
    sys.exit(code)


def _message(problem: Any) -> str:
    nearest = getattr(problem, "possibilities", None) or ()
    text = problem.message if nearest else problem.format_message()
    text = _NO_NUMBER.sub("should be a whole number", text)
    text = f"{text[:1].lower()}{text[1:]}".removesuffix(".")
    return f"{text}; did you mean {' or '.join(sorted(nearest))}?" if nearest else text


def say(name: str, words: Sequence[str], code: str, message: str, hint: str | None = None) -> None:
    """What is wrong. ``code``: for programs, which ask for JSON."""
    if "--json" in words:
        error = {"code": code, "message": message, "hint": hint}
        text = json.dumps({"error": error})
    else:
        text = f"{name}: {message}" + (f"\n{hint}" if hint else "")
    sys.stderr.write(f"{text}\n")
