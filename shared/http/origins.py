"""Which host names are answered, and which web pages may call.

This keeps foreign web pages from using the browser of somebody on this machine or in this network.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?")
_SEEN: Final = 64
"""Headers that are remembered."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
ALLOWED_METHODS: Final = "GET, HEAD, POST, PUT, DELETE"
ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Ferryman-Act-As, Idempotency-Key, If-Match, If-Modified-Since, "
    "If-None-Match, If-Range, Last-Event-ID, Range"
)
EXPOSED_HEADERS: Final = (
    "Accept-Ranges, Allow, Content-Disposition, Content-Range, ETag, Ferryman-Log-Attempt, "
    "Ferryman-Log-Ended, Ferryman-Log-Next, Ferryman-Log-Offset, Ferryman-Log-Size, "
    "Idempotent-Replayed, Last-Modified, Location, Repr-Digest, Retry-After, WWW-Authenticate, "
    "X-Request-ID"
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def normal_host(text: str) -> str | None:
    """The host of a ``Host`` header, without its port, in lower case; None: it is none."""
    text = text.strip().lower()
    if text == "*":
        return text
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        return inside if bracket and _is_port(rest) and _address(inside) else None
    if _address(text):
        return text
    host, colon, port = text.partition(":")
    host = host.removesuffix(".")
    return host if _is_port(colon + port) and _NAME.fullmatch(host) else None


def normal_origin(text: str) -> str | None:
    """``scheme://host[:port]`` in lower case, without the scheme's usual port; None: it is none."""
    try:
        parts = urlsplit(text.strip().lower())
        port = parts.port
    except ValueError:
        return None
    whole = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    if not whole or parts.query or parts.fragment or "@" in parts.netloc or "*" in parts.netloc:
        return None
    usual = {"http": 80, "https": 443}[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, usual) else "")


class Hosts:
    """The names under which a program may be called.

    An attacker can make the name of his own site point at this machine (DNS rebinding); a browser
    then takes our answers for that site's. But the browser names the host in every request, and an
    unknown name is refused. Addresses, and names without a dot, cannot be misused so: they are
    answered, too, where others than this machine may call.

    Args:
        listening: the address or name that we listen on.
        allowed: more names; ``*.example.org`` for all below, ``*`` for any.
    """

    def __init__(self, listening: str, allowed: Iterable[str]) -> None:
        allowed = [name.lower() for name in allowed]
        self._any = "*" in allowed
        self._names = {listening.lower(), *(normal_host(name) or name for name in allowed)}
        self._suffixes = tuple(name[1:] for name in allowed if name.startswith("*."))
        self._public = not is_loopback(listening)
        self._seen: dict[str, bool] = {}
        """What was said of the headers that came last: most requests have the same one."""
        if self._public:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def known(self, header: str) -> bool:
        """Whether a request with this ``Host`` is answered."""
        known = self._seen.get(header)
        if known is None:
            known = self._seen[header] = self._judge(header)
            if len(self._seen) > _SEEN:
                del self._seen[next(iter(self._seen))]
        return known

    def _judge(self, header: str) -> bool:
        host = normal_host(header)
        if host is None or host == "*":
            return False
        if self._any or is_loopback(host) or host in self._names:
            return True
        if host.endswith(self._suffixes):
            return True
        return self._public and ("." not in host or _address(host) is not None)


class Origins:
    """Which web pages may call.

    Args:
        allowed: origins that are trusted beside our own.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = {normal_origin(origin) for origin in allowed} - {None}

    def allowed(self, headers: Mapping[str, str]) -> str | None:
        """The origin of a request, if it is one of the trusted."""
        origin = headers.get("Origin", "")
        return origin if self._allowed and normal_origin(origin) in self._allowed else None

    def foreign(self, headers: Mapping[str, str]) -> bool:
        """Whether a foreign page made a browser send this."""
        if self.allowed(headers) is not None:
            return False
        site = headers.get("Sec-Fetch-Site")
        if site is not None:  # a page cannot forge it
            return site not in ("same-origin", "none")
        origin = headers.get("Origin")
        if origin is None:
            return False  # no browser: browsers send it with every unsafe method
        there = normal_origin(origin)
        host = headers.get("Host", "").strip().lower()
        return there is None or there not in {
            normal_origin(f"{scheme}://{host}") for scheme in ("http", "https")
        }

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What lets a trusted page read the answer; empty where no page is trusted."""
        if not self._allowed:
            return {}
        origin = self.allowed(headers)
        if origin is None:
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED_HEADERS,
        }


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_port(text: str) -> bool:
    """``:80`` or nothing."""
    return re.fullmatch(r"(:[0-9]{0,5})?", text) is not None
