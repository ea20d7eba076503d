"""The command line, run in a thread of this process: starting it costs more than what it does."""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

from ferryman import cli
from tests.kit.dev_program import FERRYMAN, environment

_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Said:
    code: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        return self.data.decode()


class _Stream(io.TextIOWrapper):
    """Stdout or stderr of a command; threads that are there already, a server's, keep theirs."""

    def __init__(self, theirs: TextIO, terminal: bool) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, "utf-8", write_through=True)
        self._theirs, self._terminal = theirs, terminal
        self._others = {*threading.enumerate()} - {threading.current_thread()}

    def write(self, text: str, /) -> int:
        if threading.current_thread() in self._others:
            return self._theirs.write(text)
        return super().write(text)

    def isatty(self) -> bool:
        return self._terminal


def run(
    *words: object, cwd: str | Path = "", terminal: bool = False, **variables: str | None
) -> Said:
    """The command in this thread, where stdout and stderr may be a ``terminal``.

    ``variables`` are of its environment, beside those of this process; None: without that one.
    """
    changed = {name: value for name, value in variables.items() if value is not None}
    gone = variables.keys() - changed.keys()
    env = {name: value for name, value in environment().items() if name not in gone} | changed
    out, err = _Stream(sys.stdout, terminal), _Stream(sys.stderr, terminal)
    here = Path(cwd) if cwd else Path.cwd()
    with (
        _ONE_AT_A_TIME,
        contextlib.chdir(here),
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.multiple(sys, argv=["ferryman", *map(str, words)], stdout=out, stderr=err),
    ):
        code = _exit_code()
        return Said(code, out.kept.getvalue(), err.kept.getvalue().decode())


def _exit_code() -> int:
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("main() returned")


async def ferryman(*words: str, cwd: str | Path = "", **variables: Any) -> tuple[int, str, str]:
    said = await asyncio.to_thread(run, *words, cwd=cwd, **variables)
    return said.code, said.out, said.err


def fresh(*words: object, **variables: str) -> Said:
    """The command as a user starts it, with an interpreter of its own: for what is decided as that
    starts.
    """
    command, env = (*FERRYMAN, *map(str, words)), environment() | variables
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 120}
    done = subprocess.run(command, env=env, check=False, **how)
    return Said(done.returncode, done.stdout, done.stderr.decode())
