"""What is said about a packed result."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shared.files.portable import NonPortableNames, fold

MAX_LISTED: Final = 200
"""A job can make a million odd names; the receipt must stay small."""


class ResultsLimitExceeded(Exception):
    """The job left more than a result may hold. Nothing of it was read.

    Attributes:
        what: "bytes", "entries", "depth" or "path".
        limit: the limit.
        found: how much there is, where it was counted to the end, else the first value beyond.
        where: the path that passed the limit, safe to show.
    """

    def __init__(self, what: str, limit: int, found: int, where: str) -> None:
        super().__init__(what, limit, found, where)
        self.what, self.limit, self.actual, self.where = what, limit, found, where

    def __str__(self) -> str:
        sentence = {
            "bytes": f"the files add up to at least {self.actual} bytes, the limit is {self.limit}",
            "entries": f"there are more than {self.limit} files and folders",
            "depth": f"folders are nested more than {self.limit} deep",
            "path": f"a path is {self.actual} bytes long, the limit is {self.limit}",
        }[self.what]
        return f"too much to collect: {sentence} (at {self.where})"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that is not in the ZIP, or not whole."""

    path: str
    """Odd characters escaped."""
    why: str


@dataclass(slots=True)
class Contents:
    """What is in a result. Complete when the receipt is asked for."""

    names: dict[str, str]
    """Usual name of each file of ours (``stdout.log``, ``ferryman.json``) -> its name in this
    ZIP."""
    files: int = 0
    """Files of the job's."""
    bytes: int = 0
    """Their size before compression."""
    skipped: list[Skipped] = field(default_factory=list)
    skipped_more: int = 0
    """Skipped, but not listed: the list is bounded."""
    not_portable: NonPortableNames = field(default_factory=NonPortableNames)
    """Names that are in the ZIP, and that other systems than Linux cannot store."""

    def skip(self, path: str, why: str) -> None:
        if len(self.skipped) < MAX_LISTED:
            self.skipped.append(Skipped(path, why))
        else:
            self.skipped_more += 1


@dataclass(slots=True, kw_only=True)
class Collected(Contents):
    """A packed result, durable at ``path``."""

    path: Path
    size: int
    """Bytes of the ZIP."""
    sha256: str
    """Of the ZIP, hex."""


def own_names(usual: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Names for our files beside the job's: theirs win, ours move aside.

    ``stdout.log`` becomes ``stdout.ferryman.log``, then ``stdout.ferryman.2.log`` and so on.

    Args:
        taken: folded names at the top of the job's directory.
    """
    used = set(taken)
    found: dict[str, str] = {}
    for name in usual:
        stem, dot, suffix = name.rpartition(".")
        candidate, serial = name, 0
        while fold(candidate) in used:
            serial += 1
            number = "" if serial == 1 else f".{serial}"
            candidate = f"{stem}.ferryman{number}{dot}{suffix}"
        used.add(fold(candidate))
        found[name] = candidate
    return found
