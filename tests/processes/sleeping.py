"""Processes of jobs that sleep for a time of their own, whatever sandbox hides them from others."""

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.kit.programs import until

_NUMBERS: Iterator[int] = itertools.count()


class Sleep:
    """A ``sleep`` that is nobody else's; as text the command."""

    def __init__(self) -> None:
        self._words = ["sleep", f"9876{next(_NUMBERS)}.{os.getpid()}"]

    def __str__(self) -> str:
        return " ".join(self._words)

    def pids(self) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                if (process / "cmdline").read_text(errors="replace").split("\0")[
                    :-1
                ] == self._words:
                    found.append(int(process.name))
        return found

    def end(self, number: int = 9) -> None:
        """Let the script go on, once it sleeps."""
        until(self.pids, f"nobody runs {self}")
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
