"""Names that Linux can store and other systems cannot: a warning, or refused where that is set.

A result or bundle that holds such names opens on Linux as it is. On Windows and macOS the file may
be missing, renamed, or written over another one.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from shared.files.names import UnsafeName, shown

_EXAMPLES: Final = 3
_NOT_PORTABLE: Final = re.compile(
    r"""(?P<colon>:) | (?P<sign>[<>"|?*]) | (?P<end>[. ]) (?:/|$)
    | (?:^|/) (?P<device> (?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)
        (?:[ ]*\.[^/]*)? ) (?:/|$)""",
    re.IGNORECASE | re.VERBOSE,
)


def why_not_portable(path: str) -> str | None:
    """Why Windows cannot store a path that :func:`~shared.files.names.safe_path` took, or None."""
    match = _NOT_PORTABLE.search(path)
    if match is None:
        return None
    if match["colon"]:
        return "it contains a colon, which Windows cannot store"
    if match["sign"]:
        return f"it contains the character {match['sign']}, which Windows cannot store"
    if match["end"]:
        return "a component ends in a dot or a space, which Windows drops"
    return f"{shown(match['device'])} is the name of a device on Windows"


def fold(text: str) -> str:
    """The same for all names that a case-insensitive file system takes for one file."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFD", decomposed.casefold())


def problems(paths: Iterable[str]) -> Iterator[UnsafeName]:
    """What is not portable about the files of one tree, one problem at a time.

    Args:
        paths: as :func:`~shared.files.names.safe_path` returns them; no two are the same.
    """
    folded = []
    for number, path in enumerate(paths):
        folded.append((fold(path).replace("/", "\0"), number, path))
        if why := why_not_portable(path):
            yield UnsafeName(path, why)
    # In this order, paths that differ only in case follow each other.
    folded.sort()
    for one, other in itertools.pairwise(folded):
        earlier, later = sorted((one, other), key=lambda entry: entry[1])
        spelled, here = earlier[2].split("/"), later[2].split("/")
        same = zip(earlier[0].split("\0"), later[0].split("\0"), strict=False)
        for depth, (key, other_key) in enumerate(same):
            if key != other_key:
                break
            if spelled[depth] != here[depth]:
                first = shown("/".join(spelled[: depth + 1]))
                yield UnsafeName(later[2], f"it differs only in case from {first}", "case_clash")
                break


class NonPortableNames:
    """Counts names that are not portable, and makes one warning of bounded length of them."""

    def __init__(self) -> None:
        self._examples: list[str] = []
        self._count = 0

    def add(self, path: str, why: str) -> None:
        self._count += 1
        if len(self._examples) < _EXAMPLES:
            self._examples.append(f"{shown(path)}: {why}")

    def warnings(self) -> tuple[str, ...]:
        """One warning for the job document, or none."""
        if not self._count:
            return ()
        names = "1 name is" if self._count == 1 else f"{self._count} names are"
        more = f"; and {self._count - _EXAMPLES} more" if self._count > _EXAMPLES else ""
        examples = "; ".join(self._examples)
        return (f"portable_names: {names} not for every system ({examples}{more})",)
