"""Which server, and with which token, as somebody typed it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ferryman.errors import BadArgument

_MAX_TOKEN: Final = 4096
"""Bytes; a longer first line is no token."""
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


def check_url(url: str) -> None:
    """Refuse what is no server's URL, with the URL that was probably meant.

    Raises:
        BadArgument
    """
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
        refusal.add_note("a token comes from --token-file FILE or FERRYMAN_TOKEN")
        raise refusal
    if parts.query or parts.fragment:
        raise _bad(url, "it should end before the ? or #")


def _bad(url: str, why: str) -> BadArgument:
    refusal = BadArgument(f"{url!r} is not a server's URL: {why}")
    refusal.add_note(f"such as --url {_meant(url) or 'http://127.0.0.1:5000'}")
    return refusal


def _meant(url: str) -> str | None:
    """The URL that somebody left out a part of; None: anybody's guess."""
    scheme = "https" if url.lower().startswith("https") else "http"
    rest = re.sub(r"^[A-Za-z]*:?/+", "", url.strip())
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        host, port = host or port, "5000"
    return f"{scheme}://{host}:{port}" if _HOST.fullmatch(host) else None


def token_of(path: Path) -> str:
    """The first line of a file.

    Raises:
        BadArgument: it cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            line = file.read(_MAX_TOKEN + 1).partition(b"\n")[0]
        token = line.decode().strip()
    except OSError as problem:
        why = problem.strerror or problem
        raise BadArgument(f"--token-file {path}: {why}") from problem
    except UnicodeDecodeError as problem:
        raise BadArgument(f"--token-file {path}: it is no text") from problem
    if not token:
        raise BadArgument(f"--token-file {path}: its first line is empty")
    if len(line) > _MAX_TOKEN:
        raise BadArgument(f"--token-file {path}: its first line is too long for a token")
    return token
