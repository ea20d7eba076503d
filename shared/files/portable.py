"""Names that Linux can store and other systems cannot: told, and refused only where that is wanted.

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
_ODD: Final = re.compile(
    r"""(?P<colon>:) | (?P<sign>[<>"|?*]) | (?P<end>[. ]) (?:/|$)
    | (?:^|/) (?P<device> (?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)
        (?:[ ]*\.[^/]*)? ) (?:/|$)""",
    re.IGNORECASE | re.VERBOSE,
)


def why_not_portable(path: str) -> str | None:
    """Why Windows cannot store a path that :func:`~shared.files.names.safe_path` took, or None."""
    match = _ODD.search(path)
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
    """What two names of one file on a case-insensitive file system have in common."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFD", decomposed.casefold())


def problems(paths: Iterable[str]) -> Iterator[UnsafeName]:
    """What is not portable about files that lie side by side, one problem at a time.

    Args:
        paths: as :func:`~shared.files.names.safe_path` returns them; no two are the same.
    """
    folded = []
    for number, path in enumerate(paths):
        folded.append((fold(path).replace("/", "\0"), number, path))
        if why := why_not_portable(path):
            yield UnsafeName(path, why)
    # Paths whose folders differ only in case stand beside each other in this order.
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


class NotPortable:
    """Counts problems, and makes one sentence of them, of bounded length."""

    def __init__(self) -> None:
        self._some: list[str] = []
        self._count = 0

    def add(self, path: str, why: str) -> None:
        self._count += 1
        if len(self._some) < _EXAMPLES:
            self._some.append(f"{shown(path)}: {why}")

    def warnings(self) -> tuple[str, ...]:
        """One warning for the job document, or none."""
        if not self._count:
            return ()
        names = "1 name is" if self._count == 1 else f"{self._count} names are"
        more = f"; and {self._count - _EXAMPLES} more" if self._count > _EXAMPLES else ""
        some = "; ".join(self._some)
        return (f"portable_names: {names} not for every system ({some}{more})",)
