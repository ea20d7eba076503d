"""Runs commands of ``ferryman`` in processes that it forks: it has imported all that they need.

``python -m tests.kit.command_server FD`` reads requests from the socket FD, and ends with it. A
request is a JSON object with ``arguments``, ``env`` and ``cwd``; with it come three descriptors: a
socket that gets the exit code, stdout and stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys

import aiohttp  # noqa: F401  # commands import it when they have something to ask

import ferryman
import ferryman.cli.app
from ferryman.cli.app import COMMANDS
from tests.kit import fresh_process

MOST_BYTES = 200_000


def serve(requests: socket.socket) -> None:
    """Fork for each request, until the other side is closed."""
    getattr(ferryman, "Client")  # noqa: B009  # imported at its first use, as the commands are
    for where, _ in COMMANDS.values():
        importlib.import_module(f"ferryman.cli.{where.partition(':')[0]}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(message), descriptors)
        for fd in descriptors:
            os.close(fd)


def _watch(request: dict[str, object], descriptors: list[int]) -> None:
    """Run the command in a process of its own, and send its exit code."""
    answer, *streams = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, fd in enumerate(streams, 1):
            os.dup2(fd, number)
        os.chdir(str(request["cwd"]))
        arguments, env = request["arguments"], request["env"]
        assert isinstance(arguments, list)
        assert isinstance(env, dict)
        fresh_process.run_module("ferryman", arguments, env)
    for fd in streams:
        os.close(fd)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(answer, str(code).encode())
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
