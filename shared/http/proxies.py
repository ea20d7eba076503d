"""Whose request it is that a reverse proxy hands on."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from aiohttp import hdrs, web

from shared.http.connections import peer_of


class TrustedProxies:
    """Believes ``X-Forwarded-For`` of those proxies, and of nobody else.

    Args:
        networks: addresses and networks of the proxies.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(one, strict=False) for one in networks]

    def client(self, peer: str, request: web.BaseRequest) -> str:
        """The address that sent the request.

        Each proxy appends the address of whoever called it. So the list is read from its end, for
        as long as a trusted proxy wrote it: what stands before, anybody may have made up.

        Args:
            peer: address at the other end of the connection.
        """
        if not self._networks or not self._trusts(peer):
            return peer
        hops = ",".join(request.headers.getall(hdrs.X_FORWARDED_FOR, ())).split(",")
        for hop in reversed(hops):
            found = _address(hop)
            if found is None:
                break
            peer = found
            if not self._trusts(peer):
                break
        return peer

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _address(text: str) -> str | None:
    try:
        return peer_of((str(ipaddress.ip_address(text.strip())), 0))
    except ValueError:
        return None


def check_networks(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Raises ValueError: one of them is no network."""
    for one in value or ():
        try:
            ipaddress.ip_network(one, strict=False)
        except ValueError:
            raise ValueError(
                f"{one!r} is neither an address nor a network, such as 127.0.0.1 or 10.0.0.0/8"
            ) from None
    return value
