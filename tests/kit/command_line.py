"""The command line, as a process of its own beside a server in this one."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kit.dev_program import ROOT, environment


async def ferryman(*words: str, cwd: str | Path = "", **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command.

    Args:
        variables: of its environment, beside those of this process.
    """
    code, out, err = await ferryman_bytes(*words, cwd=cwd, **variables)
    return code, out.decode(), err.decode()


async def ferryman_bytes(
    *words: str, cwd: str | Path = "", **variables: str
) -> tuple[int, bytes, bytes]:
    """As :func:`ferryman`, for output that is no text."""
    env = environment() | variables
    if "coverage" in sys.modules:  # which a fork would miss
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "ferryman", *words),
            env=env,
            cwd=cwd or None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out, err
    request = {"arguments": words, "env": env, "cwd": str(cwd or Path.cwd())}
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as out_file, tempfile.TemporaryFile() as err_file:
        with theirs:
            streams = [theirs.fileno(), out_file.fileno(), err_file.fileno()]
            socket.send_fds(_command_server(), [json.dumps(request).encode()], streams)
        ours.setblocking(False)
        code = await asyncio.get_running_loop().sock_recv(ours, 100)
        out_file.seek(0)
        err_file.seek(0)
        return int(code), out_file.read(), err_file.read()


@functools.cache
def _command_server() -> socket.socket:
    """Started at the first use; it ends with this process, which alone has the socket's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        fd = theirs.fileno()
        words = [sys.executable, "-P", "-m", "tests.kit.command_server", str(fd)]
        env = environment() | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(words, env=env, pass_fds=(fd,))
    atexit.register(_end, process, ours)
    return ours


def _end(process: subprocess.Popen[bytes], requests: socket.socket) -> None:
    requests.close()
    process.wait()
