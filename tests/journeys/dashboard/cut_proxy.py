"""A way to a server that can be cut: bytes are passed on as they come, but for a connection that
sends more than it may.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_CHUNK = 1 << 16


class CutProxy:
    """Attributes:
    url: the server's, by this way.
    most: bytes that a connection may send before it stops there; None: any number.
    down: new connections are closed at once.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._there = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.most: int | None = None
        self.down = False
        self.stopped = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            found, self._open = self._open, set()
        for one in found:
            # A reset: what is under way is lost.
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends the wait for a connection
        self._accepting.join()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                near.close()
                continue
            far = socket.create_connection(self._there)
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._pass_on, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, False), daemon=True).start()

    def _pass_on(self, near: socket.socket, far: socket.socket, counts: bool) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := near.recv(_CHUNK):
                sent += len(data)
                if counts and self.most is not None and sent > self.most:
                    self.stopped.set()
                    return  # the sender waits from now on
                far.sendall(data)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_WR)


@contextmanager
def cuttable(url: str) -> Iterator[CutProxy]:
    """The way to the server, until the end."""
    proxy = CutProxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
