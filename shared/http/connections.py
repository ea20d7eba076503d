"""How many may be connected: in all and for each address, and who goes first when it is full."""

from __future__ import annotations

import ipaddress
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from shared.http.origins import is_loopback

_MOST: Final = 4096
_OWN: Final = 64
"""Descriptors kept for own work, at least; a quarter of all where that is more."""
_OWN_MOST: Final = 4096


class Closable(Protocol):
    def drop(self) -> None:
        """Close at once, whatever is under way."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections fit.

    Attributes:
        connections: open at once.
        per_peer: of one address.
        everywhere: this machine's own addresses are counted like others.
        requests: at work at once; fewer than connections, so that there is always one to close.
        waits: requests that only wait for something to happen.
        waits_per_caller: of one caller.
    """

    connections: int
    per_peer: int
    everywhere: bool
    requests: int
    waits: int
    waits_per_caller: int


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one; the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def room(open_files: int, *, most: int = 0, per_peer: int = 0, own: int = 0) -> Room:
    """Share the descriptors out between connections, the files they need, and own work.

    Args:
        open_files: the limit.
        most, per_peer: from the settings; 0: chosen here.
        own: descriptors that the program needs beside, at least.
    """
    kept = max(_OWN, own, min(open_files // 4, _OWN_MOST))
    fitting = max(8, (open_files - kept) * 4 // 7)  # three of four requests have a file open, too
    connections = min(most or _MOST, fitting)
    requests = max(1, connections * 3 // 4)
    return Room(
        connections=connections,
        per_peer=min(per_peer, connections) or max(1, connections // 2),
        everywhere=per_peer > 0,
        requests=requests,
        waits=max(1, requests * 2 // 3),
        waits_per_caller=max(1, requests // 3),
    )


def peer_of(address: object) -> str:
    """Whom a connection counts for: an IPv4 address, or the network of an IPv6 one, of which a
    single host has 2^64 addresses.
    """
    text = str(address[0]) if isinstance(address, tuple) and address else "unix"
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if not found.is_loopback:
            return str(ipaddress.ip_network((found, 64), strict=False).network_address)
    return str(found)


class Share:
    """Of the event loop's time, what requests may take that are costly to read (a body in chunks of
    one byte takes a thousand times as long as one in large chunks): a quarter, all together.
    """

    def __init__(self) -> None:
        self._free_at = 0.0

    def rest(self, now: float, spent: float) -> float:
        """Seconds for which whoever has spent so many must not be read."""
        self._free_at = max(self._free_at, now) + 4 * spent
        return self._free_at - now


class Connections:
    """Who is connected. A connection without a request at work may be closed to make room: the one
    that has been so for the longest time, of whoever has most of them.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.share = Share()
        self._peers: dict[Closable, str] = {}
        self._idle: dict[str, dict[Closable, None]] = {}
        self._count: Counter[str] = Counter()
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    def admit(self, peer: str) -> bool:
        """Whether one more of this peer may come in; closes another one where it has to. Its place
        is taken from here on: :meth:`add` it, or :meth:`give_back` the place.
        """
        counted = self.room.everywhere or not is_loopback(peer)
        if counted and self._count[peer] >= self.room.per_peer:
            admitted = self._drop_one(peer)
        else:
            admitted = len(self) < self.room.connections or self.make_room()
        if admitted:
            self._count[peer] += 1
            self._taken += 1
        return admitted

    def give_back(self, peer: str) -> None:
        """A place is free again."""
        self._count[peer] -= 1
        self._taken -= 1
        if not self._count[peer]:
            del self._count[peer]

    def make_room(self) -> bool:
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

    def add(self, connection: Closable, peer: str) -> None:
        """One that was admitted is there."""
        self._peers[connection] = peer
        self.idle(connection)

    def idle(self, connection: Closable) -> None:
        """It has no request at work."""
        peer = self._peers.get(connection)
        if peer is not None:
            self._idle.setdefault(peer, {})[connection] = None

    def busy(self, connection: Closable) -> None:
        """A request of it is at work."""
        peer = self._peers.get(connection)
        idle = self._idle.get(peer or "")
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[peer or ""]

    def remove(self, connection: Closable) -> None:
        """It is closed, or will be at once; a second time does nothing."""
        self.busy(connection)
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self.give_back(peer)
