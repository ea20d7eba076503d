"""A way to a server that can be cut: bytes are passed on as they come, but for a connection that
sends more than it may.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class CutProxy:
    """Attributes:
    url: the server's, by this way.
    most: bytes that a connection may send before it stops there; None: any number.
    down: new connections are closed at once.
    """

    def __init__(self, url: str, listener: socket.socket) -> None:
        parts = urlsplit(url)
        self._there = (parts.hostname or "", parts.port or 80)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.most: int | None = None
        self.down, self.stopped = False, threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

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

    def accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                if self.down:
                    near.close()
                    continue
                far = socket.create_connection(self._there)
                with self._lock:
                    self._open |= {near, far}
                for ends in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, near: socket.socket, far: socket.socket, counts: bool) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                sent += len(data)
                if counts and self.most is not None and sent > self.most:
                    self.stopped.set()
                    return  # the sender waits from now on
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def cuttable(url: str) -> Iterator[CutProxy]:
    """The way to the server, until the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = CutProxy(url, listener)
        accepting = threading.Thread(target=proxy.accept, args=(listener,), daemon=True)
        accepting.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)  # which ends the wait for a connection
        accepting.join()
        proxy.cut()
