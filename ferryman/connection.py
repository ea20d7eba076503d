"""How a client reaches its server: address, credentials, proxy, certificates."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from ferryman.errors import BadArgument

AnyPath: TypeAlias = str | os.PathLike[str]

_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE: Final = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Connection:
    """What every request to a server has in common."""

    base: URL
    headers: Mapping[str, str]
    proxy: str | None
    tls: ssl.SSLContext | bool
    """True: the system's certificates."""


def connection(
    url: str,
    *,
    token: str | None = None,
    act_as: str | None = None,
    headers: Mapping[str, str] | None = None,
    proxy: str | None = None,
    trust_env: bool = True,
    ca_file: AnyPath | None = None,
    client_cert: AnyPath | None = None,
    client_key: AnyPath | None = None,
) -> Connection:
    """See :class:`ferryman.Client` for the arguments.

    Raises:
        BadArgument: one of them cannot be right; certificates that cannot be read, too.
    """
    base = _base(url)
    if proxy is None and trust_env:
        proxy = _proxy_of_environment(base)
    elif proxy is not None and URL(proxy).scheme not in {"http", "https"}:
        raise BadArgument(f"{proxy!r} is not a proxy's URL such as http://proxy.example.org:3128")
    return Connection(
        base,
        _headers(token, act_as, headers or {}),
        proxy,
        _tls(base, ca_file, client_cert, client_key),
    )


def _base(url: str) -> URL:
    try:
        base = URL(url)
        port = base.port
    except ValueError:
        base, port = URL(), None
    if base.scheme not in {"http", "https"} or not base.host or not port:
        raise BadArgument(f"{url!r} is not a server's URL such as http://127.0.0.1:5000")
    if base.query_string or base.fragment:
        raise BadArgument(f"{url!r} has more than a server's URL: leave out what follows the path")
    if base.user is not None or base.password is not None:
        raise BadArgument("the server's URL has a user in it; give the token as token=…")
    return base


def _headers(token: str | None, act_as: str | None, own: Mapping[str, str]) -> dict[str, str]:
    headers = {}
    for name, value in own.items():
        if not _HEADER.fullmatch(name) or not _LINE.fullmatch(value):
            raise BadArgument(f"the header {name!r} has characters that no header can carry")
        headers[name] = value
    if token:
        if not _VISIBLE.fullmatch(token):
            raise BadArgument(
                "the token has a space, a line end or another character that no token has; "
                "was it read from a file with Windows line ends?"
            )
        headers["Authorization"] = f"Bearer {token}"
    if act_as is not None:
        if not _VISIBLE.fullmatch(act_as):
            raise BadArgument(f"act_as: {act_as!r} is not the name of a user")
        headers["Ferryman-Act-As"] = act_as
    return headers


def _proxy_of_environment(base: URL) -> str | None:
    # Not aiohttp's trust_env: that reads ~/.netrc, too, and fails where there is a token.
    host = base.host or ""
    if is_this_machine(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(base.scheme) or proxies.get("all")


def is_this_machine(host: str) -> bool:
    """Whether it is ``localhost``, or an address of the loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(
    base: URL,
    ca_file: AnyPath | None,
    client_cert: AnyPath | None,
    client_key: AnyPath | None,
) -> ssl.SSLContext | bool:
    if client_key is not None and client_cert is None:
        raise BadArgument("client_key without client_cert: give both, or client_cert with both in")
    if ca_file is None and client_cert is None:
        return True
    if base.scheme != "https":
        raise BadArgument(f"certificates are for https://, and the server's URL is {str(base)!r}")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as problem:
        raise BadArgument(f"ca_file {ca_file}: {_why(problem)}") from problem
    if client_cert is not None:
        try:
            # The empty password: otherwise OpenSSL asks at the terminal for that of the key.
            context.load_cert_chain(client_cert, client_key, password="")
        except (OSError, ValueError) as problem:
            files = " and ".join(str(one) for one in (client_cert, client_key) if one is not None)
            raise BadArgument(f"client_cert {files}: {_why(problem)}") from problem
    return context


def _why(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLError):
        if problem.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return "not a file with what is needed in PEM form, without a password"
    return getattr(problem, "strerror", None) or str(problem)
