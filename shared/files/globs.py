"""Patterns that choose files: what an upload wants to get back (``outputs``).

``*`` and ``?`` stand for characters within a name, ``[ab]`` for one of a few, ``**`` for any
folders. A pattern without a slash means a name in any folder. What names a folder means all that is
in it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final

MAX_PATTERNS: Final = 32
MAX_LENGTH: Final = 256
"""Characters of a pattern."""
_MAX_PARTS: Final = 32

_ANY: Final = "**"


def check_pattern(text: str) -> str:
    """The pattern as it is used.

    Raises:
        ValueError: it can match nothing.
    """
    if not text.isprintable() or len(text) > MAX_LENGTH or "\\" in text:
        why = f"is not up to {MAX_LENGTH} printable characters, without backslashes"
        raise ValueError(f"{text[:64]!r} {why}")
    parts = text.removesuffix("/").split("/")
    if not text.strip() or len(parts) > _MAX_PARTS or {"", ".", ".."} & set(parts):
        such_as = "write a path in the job's folder, such as out/*.csv or **/best.pdb"
        raise ValueError(f"{text[:64]!r} is no path without . and ..; {such_as}")
    return text


class Globs:
    """Some patterns. Paths that come folder by folder are matched fastest.

    Args:
        patterns: each as :func:`check_pattern` takes it.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(text, _compiled(text)) for text in patterns]
        self._folders: list[str] = []
        """The components of the latest path's folder. A job may have as many files as it likes: of
        each only the name is looked at."""
        start = [_with_skipped(wanted, {0}) for _, wanted in self._patterns]
        self._reached: list[list[set[int]]] = [start]
        """Positions that each pattern may have reached behind each of them, and at the start."""

    def matching(self, path: str) -> str | None:
        """The first pattern that chooses the file with the path; None: none does."""
        *folders, name = path.split("/")
        if folders != self._folders:
            self._enter(folders)
        for (text, wanted), reached in zip(self._patterns, self._reached[-1], strict=True):
            if reached and _ends(wanted, reached, name):
                return text
        return None

    def _enter(self, folders: list[str]) -> None:
        same = 0
        for one, known in zip(folders, self._folders, strict=False):
            if one != known:
                break
            same += 1
        del self._reached[same + 1 :]
        for folder in folders[same:]:
            above = self._reached[-1]
            self._reached.append(
                [
                    _behind(wanted, reached, folder)
                    for (_, wanted), reached in zip(self._patterns, above, strict=True)
                ]
            )
        self._folders = folders


_Part = Callable[[str], object] | None
"""Whether a component fits; None: any number of folders."""


def _compiled(text: str) -> tuple[_Part, ...]:
    parts = text.removesuffix("/").split("/")
    if len(parts) == 1:
        parts = [_ANY, *parts]
    parts = [part for at, part in enumerate(parts) if part != _ANY or parts[at - 1 : at] != [_ANY]]
    return tuple(
        None if part == _ANY else re.compile(fnmatch.translate(part)).match for part in parts
    )


def _ends(wanted: tuple[_Part, ...], reached: set[int], name: str) -> bool:
    """Whether the pattern is at its end behind the name, or was in a folder above."""
    end = len(wanted)
    if end in reached:
        return True
    last = end - 1
    if wanted[last] is None:  # it may stand for nothing
        last -= 1
    fits = wanted[last] if last in reached else None
    return fits is not None and bool(fits(name))


def _behind(wanted: tuple[_Part, ...], reached: set[int], part: str) -> set[int]:
    """The positions behind a folder. In steps of the path, and for each the positions that the
    pattern may have reached: never more than both lengths multiplied.
    """
    end = len(wanted)
    if end in reached:
        return {end}  # all that is in it is meant
    following = set[int]()
    for at in reached:
        fits = wanted[at]
        if fits is None:
            following.add(at)
        elif fits(part):
            following.add(at + 1)
    return _with_skipped(wanted, following)


def _with_skipped(wanted: tuple[_Part, ...], reached: set[int]) -> set[int]:
    """Those positions too that follow where ``**`` stands for nothing."""
    for at in sorted(reached):
        while at < len(wanted) and wanted[at] is None:
            at += 1
            reached.add(at)
    return reached
