"""The command line: data on stdout, messages on stderr, exit codes of ``ferryman.cli.exits``."""

from __future__ import annotations

import sys

from ferryman.cli.app import app
from ferryman.cli.exits import exit_of
from ferryman.cli.show import complain
from ferryman.errors import FerrymanError


def main() -> None:
    """Entry point of ``ferryman``."""
    try:
        app(prog_name="ferryman")
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(130)
    except (FerrymanError, OSError) as problem:
        complain(str(problem))
        sys.exit(exit_of(problem))
