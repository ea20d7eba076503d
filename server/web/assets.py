"""The files of the pages: styles, scripts, pictures. In memory, compressed once."""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        version: of its content; in its address, so that browsers may keep it for ever.
    """

    content: bytes
    compressed: bytes
    media_type: str
    version: str


@functools.cache
def assets() -> dict[str, Asset]:
    """Path below ``server/web/static`` -> the file. Blocking at the first call."""
    root = resources.files("server.web").joinpath("static")
    found: dict[str, Asset] = {}

    def read(folder: PurePosixPath) -> None:
        for one in root.joinpath(str(folder)).iterdir():
            path = folder / one.name
            if one.is_dir():
                read(path)
            elif path.suffix in _TYPES:
                content = one.read_bytes()
                found[str(path)] = Asset(
                    content,
                    gzip.compress(content, 9, mtime=0),
                    _TYPES[path.suffix],
                    hashlib.sha256(content).hexdigest()[:12],
                )

    read(PurePosixPath())
    return found
