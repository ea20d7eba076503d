"""What both HTTP servers have in common: who may listen where, who may call, and starting to
listen.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN: Final = frozenset({"/", "/health"})
"""Paths that answer without a token: they tell nothing about anybody's work."""


class CannotListen(Exception):
    """The address cannot be used; the text says why and what to do."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tokens: Iterable[str], what: str) -> None:
    """No authentication means loopback only.

    Raises:
        CannotListen
    """
    if not is_loopback(host) and not any(tokens):
        raise CannotListen(
            f"refusing to listen on {host} without a token: whoever reaches it could run programs. "
            f"Set {what}.tokens (or {what}.tokens_file) and give callers one of them, "
            "or listen on 127.0.0.1 behind a proxy that authenticates"
        )


def bearer(tokens: Iterable[str]) -> Callable[[web.Request], bool]:
    """A constant-time check of ``Authorization: Bearer …``; without tokens everybody may call."""
    digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    def allowed(request: web.Request) -> bool:
        if not digests or request.path in OPEN:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode()).digest()
        found = [hmac.compare_digest(digest, one) for one in digests]
        return scheme.lower() == "bearer" and any(found)

    return allowed


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket, so that a port in use is known before anything else starts.

    Raises:
        CannotListen
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(1024)
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
