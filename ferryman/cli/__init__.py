"""The command line: data on stdout, messages on stderr, exit codes of ``ferryman.cli.exits``.

HTTP client and models are imported by what uses them, so that help and usage errors come at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from ferryman.cli.app import app
from ferryman.cli.exits import INTERRUPTED, exit_code_for
from ferryman.cli.show import print_error, print_message
from ferryman.errors import FerrymanError, NotAllowed

_WHICH_SERVER: Final = ("--url", "--token", "--token-file")
_GROUPS: Final = frozenset(group.name for group in app.registered_groups)
"""Commands that have commands of their own."""


def main() -> None:
    """Entry point of ``ferryman``."""
    try:
        app(command_first(sys.argv[1:]), prog_name="ferryman")
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(INTERRUPTED)
    except (FerrymanError, OSError) as problem:
        print_error(_text(problem))
        for note in getattr(problem, "__notes__", ()):
            print_message(note)
        if isinstance(problem, NotAllowed) and problem.status == 401:
            print_message(
                "a token comes from FERRYMAN_TOKEN or --token-file; the server's operator has it"
            )
        sys.exit(exit_code_for(problem))


def _text(problem: Exception) -> str:
    """An error's text; of the operating system's the file and the reason, without the number."""
    if isinstance(problem, OSError) and problem.filename is not None and problem.strerror:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)


def command_first(words: Sequence[str]) -> list[str]:
    """Options that say which server may stand before the command, too: put them behind it."""
    at = 0
    while at < len(words) and words[at].partition("=")[0] in _WHICH_SERVER:
        at += 1 if "=" in words[at] else 2
    end = at + (2 if words[at : at + 1] and words[at] in _GROUPS else 1)
    return [*words[at:end], *words[:at], *words[end:]]
