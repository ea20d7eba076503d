"""The server's URL, and the variables that the command line reads."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from ferryman.errors import BadArgument

DEFAULT_URL: Final = "http://127.0.0.1:5000"
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
VARIABLES: Final = frozenset(
    f"FERRYMAN_{name}"
    for name in (
        *("URL", "TOKEN", "USER", "SERVICE"),
        *("CA_FILE", "CLIENT_CERT", "CLIENT_KEY"),
        "CONFIG",
    )
)
"""All variables of the command line. Server and agent leave them alone: they are no settings."""


def check_url(url: str) -> None:
    """Refuse what is no server's URL, with the URL that was probably meant. Raises BadArgument."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise _bad(url, str(problem)) from None
    host = parts.netloc.rpartition("@")[2].removesuffix(f":{port}")
    if parts.scheme not in {"http", "https"} or not _HOST.fullmatch(host):
        raise _bad(url, "it should begin with http:// or https:// and a host")
    if port == 0:
        raise _bad(url, "port 0 is none that a server has")
    if parts.username is not None:
        refusal = BadArgument("the server's URL has a user or a token in it, which others can see")
        refusal.add_note("give the token as token=…, or in FERRYMAN_TOKEN or --token-file FILE")
        raise refusal
    if parts.query or parts.fragment:
        raise _bad(url, "it should end before the ? or #")


def _bad(url: str, why: str) -> BadArgument:
    refusal = BadArgument(f"{url!r} is not a server's URL: {why}")
    refusal.add_note(f"such as {_meant(url) or DEFAULT_URL} (--url, FERRYMAN_URL)")
    return refusal


def _meant(url: str) -> str | None:
    """The URL that somebody left out a part of; None: anybody's guess."""
    scheme = "https" if url.lower().startswith("https") else "http"
    rest = re.sub(r"^[A-Za-z]*:?/+", "", url.strip())
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        host, port = host or port, "5000"
    return f"{scheme}://{host}:{port}" if _HOST.fullmatch(host) else None
