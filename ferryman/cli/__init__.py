"""The command line: data on stdout, messages on stderr, exit codes of ``ferryman.cli.exits``.

HTTP client and models are imported by what uses them, so that help and usage errors come at once.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

import typer
from typer.main import get_command

from ferryman.cli.app import app, command_first
from ferryman.cli.exits import Interrupted, asked_for_json, report
from ferryman.errors import FerrymanError

_PROBLEMS: Final = (FerrymanError, OSError, Interrupted, typer.Abort, typer.TyperException)

_GARBAGE_AFTER: Final = 100_000
"""New objects before garbage is looked for: imports make many, which stay."""


def main() -> None:
    """Entry point of ``ferryman``."""
    gc.set_threshold(_GARBAGE_AFTER)
    root = get_command(app)
    if sys.argv[1:2] == ["__complete"]:
        from ferryman.cli.completion import complete

        sys.stdout.write(complete(sys.argv[2:], root))
        sys.exit(0)
    try:
        words = command_first(sys.argv[1:])
        code = root.main(words, prog_name="ferryman", standalone_mode=False)
    except _PROBLEMS as problem:
        code = report(problem, as_json=asked_for_json(sys.argv[1:]))
    sys.exit(code)
