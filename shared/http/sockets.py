"""The listening socket, and where a program without tokens may listen."""

from __future__ import annotations

import errno
import socket

from shared.http.listener import BACKLOG
from shared.http.origins import is_loopback


class CannotListen(Exception):
    """The address cannot be used; the text says why and what to do."""


def check_exposure(host: str, protected: bool, what: str) -> None:
    """No authentication means loopback only.

    Args:
        protected: requests need a token.
        what: table of the settings.

    Raises:
        CannotListen
    """
    if not is_loopback(host) and not protected:
        raise CannotListen(
            f"refusing to listen on {host} without a token: whoever reaches it could run programs. "
            f"Set {what}.tokens and give callers one of them, "
            "or listen on 127.0.0.1 behind a proxy that authenticates"
        )


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket, so that a port in use is known before anything else starts. Raises
    CannotListen.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
    except OSError as problem:
        why = {
            errno.EADDRINUSE: "another program listens there; stop it, or choose another port",
            errno.EACCES: "not permitted; ports below 1024 need root",
        }.get(problem.errno or 0, problem.strerror or str(problem))
        raise CannotListen(f"cannot listen on {host}:{port}: {why}") from problem
    sock.setblocking(False)
    return sock


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    """The URL under which this machine reaches it."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
