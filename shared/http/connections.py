"""Limits of connections: in all and for each address, and which is closed when all are used."""

from __future__ import annotations

import ipaddress
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from shared.http.origins import is_loopback
from shared.logs import RateLimiter

MAX_CONNECTIONS: Final = 4096
"""In all, where the open files allow so many: each may hold some 100 KiB of buffers."""
_MIN_RESERVED: Final = 64
"""Descriptors reserved for the program's own files, at least; otherwise a quarter of all."""
_MALFORMED_A_SECOND: Final = 10.0
_MAX_RESERVED: Final = 4096


class Closable(Protocol):
    def drop(self) -> None:
        """Close at once, even during a request."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections and requests there may be at once.

    Attributes:
        connections: in all.
        per_peer: of one address, but for this machine's own.
        requests: being handled; fewer than connections, so that there is always one to close.
        waits: long polls: requests that only wait for something to happen.
        waits_per_caller: long polls of one caller.
    """

    connections: int
    per_peer: int
    requests: int
    waits: int
    waits_per_caller: int


def raise_open_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def connection_limits(open_files: int, *, own: int = 0) -> ConnectionLimits:
    """Divide the descriptors between connections, the files that these need, and own files.

    Args:
        open_files: the limit of open files.
        own: descriptors that the program needs for itself, at least.
    """
    reserved = max(_MIN_RESERVED, own, min(open_files // 4, _MAX_RESERVED))
    # Three of four requests have two files open, too: a result is sent with files of its bundle.
    fitting = max(8, (open_files - reserved) * 2 // 5)
    connections = min(MAX_CONNECTIONS, fitting)
    requests = max(1, connections * 3 // 4)
    return ConnectionLimits(
        connections=connections,
        per_peer=max(1, connections // 2),
        requests=requests,
        waits=max(1, requests * 2 // 3),
        waits_per_caller=max(1, requests // 3),
    )


def peer_of(address: object) -> str:
    """The address that a connection is counted for: an IPv4 address, or the /64 network of an IPv6
    address, because a single host has 2^64 of these.
    """
    text = str(address[0]) if isinstance(address, tuple) and address else "unix"
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        if not ip.is_loopback:
            return str(ipaddress.ip_network((ip, 64), strict=False).network_address)
    return str(ip)


class ReadThrottle:
    """Limits the event loop's time for requests that are costly to read to a quarter, all together.

    A body in chunks of one byte takes a thousand times as long as one in large chunks.
    """

    def __init__(self) -> None:
        self._free_at = 0.0

    def pause_s(self, now: float, spent: float) -> float:
        """Seconds without reading for a connection whose data took ``spent`` seconds."""
        self._free_at = max(self._free_at, now) + 4 * spent
        return self._free_at - now


class Connections:
    """All open connections. When all are used, an idle one is closed for a new one: of the peer
    with most idle ones, the one that has been idle for the longest time.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.throttle = ReadThrottle()
        self.malformed = RateLimiter(_MALFORMED_A_SECOND)
        self.failed = RateLimiter(_MALFORMED_A_SECOND)
        """Limits the log's lines about requests that are none."""
        self._peers: dict[Closable, str] = {}
        self._idle: dict[str, dict[Closable, None]] = {}
        self._count: Counter[str] = Counter()
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    def admit(self, peer: str) -> bool:
        """Whether one more connection of this peer is accepted; closes an idle one if necessary. It
        is counted from here on: :meth:`add` it, or :meth:`release` it.
        """
        if not is_loopback(peer) and self._count[peer] >= self.limits.per_peer:
            admitted = self._drop_one(peer)
        else:
            admitted = len(self) < self.limits.connections or self.close_idle()
        if admitted:
            self._count[peer] += 1
            self._taken += 1
        return admitted

    def release(self, peer: str) -> None:
        """A connection of this peer is no longer counted."""
        self._count[peer] -= 1
        self._taken -= 1
        if not self._count[peer]:
            del self._count[peer]

    def close_idle(self) -> bool:
        """Close an idle connection; whether there was one."""
        if not self._idle:
            return False
        return self._drop_one(max(self._idle, key=lambda peer: len(self._idle[peer])))

    def _drop_one(self, peer: str) -> bool:
        oldest = next(iter(self._idle.get(peer, ())), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.drop()
        return True

    def add(self, connection: Closable, peer: str, instead_of: Closable | None = None) -> None:
        """A connection that was admitted is established.

        Args:
            instead_of: what it was until now. If that was closed for another one a moment ago, so
                is the connection.
        """
        if instead_of is not None:
            self.busy(instead_of)
            if self._peers.pop(instead_of, None) is None:
                connection.drop()
                return
        self._peers[connection] = peer
        self.idle(connection)

    def idle(self, connection: Closable) -> None:
        """It has no request that is being handled."""
        peer = self._peers.get(connection)
        if peer is not None:
            self._idle.setdefault(peer, {})[connection] = None

    def busy(self, connection: Closable) -> None:
        """A request of it is being handled."""
        peer = self._peers.get(connection)
        idle = self._idle.get(peer or "")
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[peer or ""]

    def remove(self, connection: Closable) -> None:
        """It is closed, or will be at once; a second call does nothing."""
        self.busy(connection)
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self.release(peer)
