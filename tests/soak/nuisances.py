"""Clients that break off, trickle, hang and talk nonsense."""

from __future__ import annotations

import socket
import threading
from random import Random
from urllib.parse import urlsplit

from tests.soak.asking import pause
from tests.soak.model import Model

_HEAD = (
    "POST /upload?user_id=nuisance&service=example HTTP/1.1\r\nHost: localhost\r\n"
    "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 500000\r\n\r\n"
    '--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n'
)


class Nuisance(threading.Thread):
    """One of them, again and again; nothing of it is a job, and nothing may be left of it."""

    def __init__(self, url: str, model: Model, seed: int) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._model, self._random = model, Random(seed)
        self.stop = threading.Event()

    def run(self) -> None:
        kinds = (self.breaks_off, self.trickles, self.reads_little, self.listens, self.babbles)
        while not self.stop.wait(self._random.uniform(0.2, 2)):
            kind = self._random.choice(kinds)
            try:
                with socket.create_connection(self._address, 30) as line:
                    kind(line)
            except OSError:
                continue
            finally:
                self._model.count(f"client that {kind.__name__.replace('_', ' ')}")

    def breaks_off(self, line: socket.socket) -> None:
        line.sendall(_HEAD.encode() + b"x" * self._random.randrange(100_000))

    def trickles(self, line: socket.socket) -> None:
        """For longer than the server has patience with one so slow."""
        line.sendall(_HEAD.encode())
        line.settimeout(1)
        for _ in range(40):
            if self.stop.is_set():
                return
            line.sendall(b"x" * 10)
            try:
                if line.recv(4096) is not None:
                    return
            except TimeoutError:
                continue

    def reads_little(self, line: socket.socket) -> None:
        ids = list(self._model.jobs)
        job_id = self._random.choice(ids[-50:]) if ids else 1
        line.sendall(f"GET /download/{job_id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        line.recv(100)

    def listens(self, line: socket.socket) -> None:
        line.sendall(
            b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        )
        for _ in range(self._random.randrange(1, 20)):
            if not line.recv(4096):
                return

    def babbles(self, line: socket.socket) -> None:
        line.sendall(self._random.randbytes(300))
        pause(self._random.uniform(0, 1))
