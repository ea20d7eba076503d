"""The two programs without a new interpreter: forked from the test, which has imported them.

Starting Python and importing everything costs several times what most tests of a program cost
themselves. Tests of the command line, of ``ferryman dev`` and of deployment do start them afresh.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

import client_agent.__main__  # noqa: F401
import server.__main__  # noqa: F401  # both: for the children
from shared.wire import Wire
from tests.kit import fresh_process


def _build(model: type[BaseModel]) -> None:
    """Models are built at their first use: here, so that no child has to."""
    model.model_rebuild()
    for below in model.__subclasses__():
        _build(below)


_build(Wire)


def start(
    module: str, arguments: Sequence[str], env: Mapping[str, str], **how: Any
) -> subprocess.Popen[Any]:
    """As ``python -P -m module`` in this environment, with the other arguments of Popen.

    It is ``python`` where FRESH_PROGRAMS is set, in the bench, where lines are counted, which
    a fork would miss, and while this process has a database open: a thread that is in SQLite at
    that moment would leave its locks to the child for ever.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    fresh = "FRESH_PROGRAMS" in os.environ or "coverage" in sys.modules
    if fresh or "pytest" not in sys.modules or _database_is_open():
        return subprocess.Popen(command, env=env, **how)
    be = _instead_of_exec(module, arguments, env, how.get("pass_fds", ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of other tests: the child touches none
        return subprocess.Popen(command, env=env, preexec_fn=be, **how)


def run(
    module: str, arguments: Sequence[str], env: Mapping[str, str], **how: Any
) -> subprocess.CompletedProcess[str]:
    """:func:`start` it and wait for its end; what it wrote."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(module, arguments, env, text=True, **pipes, **how) as process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _database_is_open() -> bool:
    return any("_connection_worker_thread" in thread.name for thread in threading.enumerate())


def _instead_of_exec(
    module: str, arguments: Sequence[str], env: Mapping[str, str], keep: Sequence[int]
) -> Callable[[], None]:
    def be() -> None:
        fresh_process.run_module(module, arguments, env, keep)

    return be
