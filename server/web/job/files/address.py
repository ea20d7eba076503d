"""Addresses of files in pages: names may be anything."""

from __future__ import annotations

from urllib.parse import quote

_LOST: frozenset[str] = frozenset({"", ".", ".."})
"""Parts of a path that browsers and proxies leave out."""


def quoted(path: str) -> str | None:
    """The path of a file as the end of an address; None: it cannot be one."""
    if path in (".", ".."):
        return None
    odd = not _LOST.isdisjoint(path.split("/"))
    return quote(path, safe="" if odd else "/", errors="surrogatepass")


def crumbs(prefix: str) -> list[tuple[str, str]]:
    """Name and prefix of each folder on the way to one."""
    parts = prefix.split("/")[:-1]
    return [(one, "/".join(parts[: at + 1]) + "/") for at, one in enumerate(parts)]
