"""Makes of a forked process what an interpreter that has just started is."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import runpy
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import NoReturn

import structlog


def run_module(
    module: str, arguments: Sequence[str], env: Mapping[str, str], keep: Sequence[int] = ()
) -> NoReturn:
    """Do in this process what ``python -m module`` does, and end it.

    Args:
        keep: descriptors that stay open, beside those of stdin, stdout and stderr.
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
    for name in ("client_agent.__main__", "server.__main__", "ferryman.__main__"):
        sys.modules.pop(name, None)
