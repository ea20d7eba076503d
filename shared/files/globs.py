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
    """Some patterns.

    Args:
        patterns: each as :func:`check_pattern` takes it.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(text, _compiled(text)) for text in patterns]

    def matching(self, path: str) -> str | None:
        """The first pattern that chooses the file with the path; None: none does."""
        parts = path.split("/")
        return next((text for text, wanted in self._patterns if _chooses(wanted, parts)), None)


_Part = Callable[[str], object] | None
"""Whether a component fits; None: any number of folders."""


def _compiled(text: str) -> tuple[_Part, ...]:
    parts = text.removesuffix("/").split("/")
    if len(parts) == 1:
        parts = [_ANY, *parts]
    return tuple(
        None if part == _ANY else re.compile(fnmatch.translate(part)).match for part in parts
    )


def _chooses(wanted: tuple[_Part, ...], parts: Sequence[str]) -> bool:
    """Whether the pattern fits the path or a folder above it. In steps of the path, and for each
    the positions of the pattern that it may have reached: never more than both lengths multiplied.
    """
    end, reached = len(wanted), _with_skipped(wanted, {0})
    for part in parts:
        if end in reached:
            return True
        following = set[int]()
        for at in reached:
            fits = wanted[at]
            if fits is None:
                following.add(at)
            elif fits(part):
                following.add(at + 1)
        reached = _with_skipped(wanted, following)
    return end in reached


def _with_skipped(wanted: tuple[_Part, ...], reached: set[int]) -> set[int]:
    """Those positions too that follow where ``**`` stands for nothing."""
    for at in sorted(reached):
        while at < len(wanted) and wanted[at] is None:
            at += 1
            reached.add(at)
    return reached
