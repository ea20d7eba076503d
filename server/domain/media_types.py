"""Media types of files, by their names."""

from __future__ import annotations

import mimetypes
from typing import Final

UNKNOWN: Final = "application/octet-stream"
TEXT: Final = "text/plain"
_SHOWN_IMAGES: Final = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"}
)
"""Those that cannot hold a script: no SVG."""
_SHOWN_TEXT: Final = frozenset({"application/json", "application/xml"})
_TYPES: Final = mimetypes.MimeTypes(filenames=())
"""Without the files of the system, which differ."""
for _ending in (".log", ".out", ".err", ".md", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".sh"):
    _TYPES.add_type(TEXT, _ending)
for _type in ("webp", "avif"):
    _TYPES.add_type(f"image/{_type}", f".{_type}")


def media_type(path: str) -> str:
    """The type of a file called so."""
    name = path.rpartition("/")[2]
    found, encoding = _TYPES.guess_type(f"file:{name}" if ":" in name else name)
    if encoding is not None:  # what is inside is of that type, not the file
        return "application/gzip" if encoding == "gzip" else UNKNOWN
    return found or UNKNOWN


def shown_as(path: str) -> str | None:
    """The type that a browser may show the file as; None: it may only save it.

    All text is shown as plain text: a page or script is not run.
    """
    found = media_type(path)
    if found.startswith("text/") or found in _SHOWN_TEXT:
        return f"{TEXT}; charset=utf-8"
    return found if found in _SHOWN_IMAGES else None
