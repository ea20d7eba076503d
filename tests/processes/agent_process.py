"""The agent as a program: started, called, signalled, killed."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shared.wire import Limits
from tests.kit import dev_program, forked_programs, programs
from tests.kit.agent_http import bundle_of, in_lines, order_of
from tests.kit.raw_archives import unzipped

PATIENCE_S: Final = 60.0
"""Nothing here takes a second on an idle machine."""
LIMITS: Final = Limits(memory=256 << 20, disk=16 << 20, log=1 << 16, results=8 << 20, pids=64)


def environment(**more: str) -> dict[str, str]:
    """This process's, without anything that the agent would read."""
    return dev_program.environment() | more


class AgentProcess:
    def __init__(self, process: subprocess.Popen[str], port: int, tmp: Path) -> None:
        self.process, self.port, self._tmp = process, port, tmp
        self.data = tmp / "agent"

    def call(
        self, method: str, path: str, data: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status, and the body: a document, or bytes where it is something else."""
        url = f"http://127.0.0.1:{self.port}"
        status, body = programs.call(url, method, path, data or b"", headers)
        return status, json.loads(body) if body.startswith(b"{") else body

    def files(self, payload_id: int) -> dict[str, bytes]:
        """What it left."""
        status, data = self.call("GET", f"/retrieve_partial/{payload_id}")
        assert status == 200, data
        return unzipped(data)

    def submit(self, key: str, files: Mapping[str, bytes], **changed: Any) -> dict[str, Any]:
        """As a Ferryman server does; returns the payload."""
        data, digest = bundle_of(self._tmp, files)
        order = order_of(key, data, digest, **{"limits": LIMITS} | changed)
        body = in_lines((order.model_dump(mode="json"), data))
        status, answer = self.call("POST", "/payloads", body)
        assert status == 200, answer
        (one,) = answer["answers"]
        assert one["payload"], one
        return dict(one["payload"])

    def forget(self, payload_id: int) -> None:
        """As its server does."""
        body = in_lines(acknowledge=[{"id": payload_id}])
        status, answer = self.call("POST", "/payloads", body)
        assert (status, answer["refused"]) == (200, {})

    def until(self, payload_id: int, *states: str) -> dict[str, Any]:
        """Follow the event stream until the payload is in one of the states."""
        url = f"http://127.0.0.1:{self.port}/events"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as lines:
            for line in lines:
                payload = json.loads(line)["payload"]
                if payload and payload["id"] == payload_id:
                    if payload["status"] in states:
                        return dict(payload)
                    assert payload["status"] in ("Prepared", "Running"), payload
        raise AssertionError(f"the agent ended before payload {payload_id} was in {states}")

    def ended(self, payload_id: int) -> dict[str, Any]:
        return self.until(payload_id, "Completed", "Failed", "Killed", "Invalid")

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def log(self) -> str:
        """What it wrote on stderr; once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


def _start(
    arguments: Sequence[str], wrap: tuple[str, ...], env: Mapping[str, str], **how: Any
) -> subprocess.Popen[str]:
    how |= {"cwd": dev_program.ROOT, "env": environment(**env), "text": True}
    if wrap:
        command = [*wrap, sys.executable, "-P", "-m", "client_agent", *arguments]
        return subprocess.Popen(command, **how)
    return forked_programs.start("client_agent", arguments, **how)


@contextlib.contextmanager
def agent(
    home: Path, *arguments: str, wrap: tuple[str, ...] = (), **env: str
) -> Iterator[AgentProcess]:
    """Start one on a free port; killed at the end if it still runs.

    Args:
        wrap: a command that executes the agent.
    """

    def begin(tell: int) -> subprocess.Popen[str]:
        given = ("--port", "0", "--data-dir", str(home / "agent"), "--ready-fd", str(tell))
        how: dict[str, Any] = {"pass_fds": (tell,), "stderr": subprocess.PIPE}
        process = _start([*given, *arguments], wrap, env, **how)
        stack.callback(process.communicate, timeout=PATIENCE_S)
        stack.callback(process.kill)
        return process

    with contextlib.ExitStack() as stack:
        process, port = programs.announced(begin)
        assert port, f"it did not start: {process.communicate(timeout=PATIENCE_S)[1]}"
        yield AgentProcess(process, int(port), home)


@contextlib.contextmanager
def watched(pid: int) -> Iterator[int]:
    """A pidfd, taken while the process lives."""
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)
