"""Server and agent as separate programs on fixed ports, to be killed and started again."""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import urlopen

from tests.kit import forked_programs
from tests.kit.dev_program import environment, marked, outside
from tests.kit.raw_archives import FORM, file_part, form_of, text_part

T = TypeVar("T")
JSON = ("--log-format", "json")


def free_port() -> int:
    """One that the kernel gives to nobody else while this process lives: it stays bound here. The
    program may bind it, too, as nobody listens.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = int(held.getsockname()[1])
    held.detach()
    return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Program:
    def __init__(
        self, name: str, folder: Path, mark: str, *flags: str, host: str = "127.0.0.1"
    ) -> None:
        self.name, self.mark, self.port, self.host = name, mark, free_port(), host
        self.data, self._log = folder / name, folder / f"{name}.log"
        self._flags = flags
        self.prefix: tuple[str, ...] = ()
        """Words before its own, such as ``prlimit --nofile=300``."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def begin(self, tell: int | None = None) -> None:
        """Start it; do not wait. The descriptor ``tell`` gets its port once it listens."""
        ours = ["--host", self.host, "--port", str(self.port), "--data-dir", str(self.data)]
        with self._log.open("ab") as log:
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            words, env = [*ours, *JSON, *self._flags], environment(self.mark)
            if tell is not None:
                words += ["--ready-fd", str(tell)]
                how["pass_fds"] = (tell,)
            if self.prefix:
                command = [*self.prefix, sys.executable, "-P", "-m", self.name, *words]
                self.process = subprocess.Popen(command, env=env, **how)
            else:
                self.process = forked_programs.start(self.name, words, env, **how)

    def start(self) -> None:
        _, port = announced(self.begin)
        assert port == str(self.port), f"{self.name} does not listen: {self.log[-3_000:]}"

    def answers(self) -> bool:
        assert self.runs, f"{self.name} ended: {self.log[-3_000:]}"
        return listens(self.port)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Until the end: then it must stop well, if it still runs. It never outlives this."""
        try:
            self.start()
            yield self
            if self.runs:
                assert self.kill(signal.SIGTERM) == 0, self.log[-3_000:]
        finally:
            if self.runs:
                self.kill()

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = 60) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.send(number)
        return self.wait()


def announced(begin: Callable[[int], T]) -> tuple[T, str]:
    """Begin a program that tells a descriptor its port; that port, or "" where it ended."""
    read, write = os.pipe()
    with os.fdopen(read) as told:
        begun = begin(write)
        os.close(write)
        assert select.select([told], [], [], 80)[0], "it neither listens nor ends"
        return begun, told.readline().strip()


def until(true, what: str, more=lambda: "", seconds: float = 80.0) -> None:
    never = threading.Event()
    for _ in range(round(seconds / 0.02)):
        if true():
            return
        never.wait(0.02)
    raise AssertionError(f"{what} {more()}")


@contextmanager
def other_program(
    command: Sequence[object], log: Path, ready: Callable[[], bool], **how: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """One that is not ours, from when it is ready to its end."""
    words = [str(word) for word in command]
    with log.open("ab") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **how)

    def is_ready() -> bool:
        assert process.poll() is None, f"{words[0]} ended: {log.read_text()}"
        return ready()

    try:
        until(is_ready, f"{words[0]} is not ready", log.read_text)
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGCONT):  # whoever was stopped hears the first, too
            process.send_signal(number)
        process.wait(30)


def left_behind(agent: Program) -> list[str]:
    return [f"process {pid}" for pid in marked(agent.mark)] + outside(agent.data)


def call(
    url: str, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body.

    Raises:
        AssertionError: the body is not that of the digest in the answer's head.
        OSError, http.client.HTTPException: there is no answer, or it broke off.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        digest = answer.headers.get("Repr-Digest")
        if digest is not None and answer.status == 200:  # it is that of the whole
            found = base64.b64encode(hashlib.sha256(content).digest()).decode()
            assert digest == f"sha-256=:{found}:"
        return answer.status, content
    finally:
        connection.close()


def form(files: Mapping[str, bytes | str], **fields: str) -> bytes:
    """The body of an upload, of user 1 to the service example if nothing else is said."""
    texts = {"user_id": "1", "service": "example"} | fields
    contents = {
        name: text.encode() if isinstance(text, str) else text for name, text in files.items()
    }
    parts = [text_part(name, value) for name, value in texts.items()]
    return form_of(*parts, *(file_part(name, content) for name, content in contents.items()))


def upload(url: str, files: Mapping[str, bytes | str], **fields: str) -> tuple[int, Any]:
    body = form(files, **fields)
    status, said = call(url, "POST", "/upload", body, {"Content-Type": FORM})
    return status, json.loads(said)


PATIENCE_S = 60.0


class Pair:
    """Server, with this TOML, and agent; both listen at ``host``."""

    def __init__(self, folder: Path, settings: str, host: str = "127.0.0.1") -> None:
        config = folder / "ferryman.toml"
        config.write_text(settings)
        mark = uuid.uuid4().hex
        self.agent = Program("client_agent", folder, mark, "--config", str(config), host=host)
        flags = ("--config", str(config), "--agent-url", self.agent.url)
        self.server = Program("server", folder, mark, *flags, host=host)

    def get(self, path: str) -> bytes:
        with urlopen(f"{self.server.url}{path}", timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    def json(self, path: str) -> Any:
        return json.loads(self.get(f"/api/v1{path}"))

    def submit(self, script: str, user: str = "1", **fields: str) -> int:
        status, said = upload(self.server.url, {"run.sh": script}, user_id=user, **fields)
        assert status == 201, (status, said)
        return int(said["id"])

    def status(self, job_id: int) -> str:
        return str(self.json(f"/jobs/{job_id}")["status"])

    def until(self, job_id: int, status: str) -> None:
        def found() -> str:
            return f"{self.get(f'/api/v1/jobs/{job_id}').decode()} {self.server.log[-3_000:]}"

        until(lambda: self.status(job_id) == status, f"job {job_id} is not {status}:", found)

    def result(self, job_id: int) -> zipfile.ZipFile:
        archive = zipfile.ZipFile(io.BytesIO(self.get(f"/api/v1/jobs/{job_id}/result")))
        assert archive.testzip() is None
        return archive

    @contextmanager
    def running(self) -> Iterator[Pair]:
        """Both, until the end; then they must stop well and leave nothing behind."""
        with self.agent.running(), self.server.running():
            yield self
        assert left_behind(self.agent) == []
