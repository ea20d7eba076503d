"""The two programs without a new interpreter: forked from the test, which has imported them.

Starting Python and importing everything costs several times what most tests of a program cost
themselves. Tests of the command line, of ``ferryman dev`` and of deployment do start them afresh.
"""

import asyncio
import faulthandler
import functools
import gc
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import structlog
from pydantic import BaseModel

import client_agent.__main__  # noqa: F401
import server.__main__  # noqa: F401  # both: for the children
from shared.wire import Wire


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
    be = functools.partial(_run_module, module, arguments, env, how.get("pass_fds", ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of other tests: the child touches none
        return subprocess.Popen(command, env=env, preexec_fn=be, **how)


def run(
    module: str, arguments: Sequence[str], env: Mapping[str, str], **how: Any
) -> subprocess.CompletedProcess[str]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return ended(start(module, arguments, env, text=True, **pipes, **how))


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    with process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _database_is_open() -> bool:
    return any("_connection_worker_thread" in thread.name for thread in threading.enumerate())


def _run_module(
    module: str, arguments: Sequence[str], env: Mapping[str, str], keep: Sequence[int] = ()
) -> NoReturn:
    """Do in this process what ``python -m module`` does, and end it. The descriptors ``keep`` stay
    open, beside those of stdin, stdout and stderr.
    """
    code: object = 1
    try:
        _become_fresh(env, keep)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # as the interpreter does at the end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _become_fresh(env: Mapping[str, str], keep: Sequence[int]) -> None:
    """What an interpreter that has just started has, as far as the programs notice it."""
    gc.freeze()  # what is the parent's is neither looked at nor copied
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    first = 3
    for fd in sorted(keep):  # one more than these: Popen waits until it is closed, or an exec
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    logging.getLogger().handlers.clear()
    structlog.reset_defaults()
    asyncio._set_running_loop(None)
    for name in ("client_agent.__main__", "server.__main__"):
        sys.modules.pop(name, None)
