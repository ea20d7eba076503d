"""What a packed result contains."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from client_agent.collect.receipt import SkippedFile
from shared.files.portable import NonPortableNames, fold

MAX_LISTED: Final = 200
"""A job can make a million unusual names, but the receipt must stay small."""


class ResultsLimitExceeded(Exception):
    """The job left more than a result may contain. None of its files was read.

    Attributes:
        what: "bytes", "entries", "depth" or "path".
        limit: the limit.
        actual: the first value above the limit.
        where: the path at which the limit was exceeded, safe to show.
    """

    def __init__(self, what: str, limit: int, actual: int, where: str) -> None:
        super().__init__(what, limit, actual, where)
        self.what, self.limit, self.actual, self.where = what, limit, actual, where

    def __str__(self) -> str:
        sentence = {
            "bytes": f"the files add up to at least {self.actual} bytes, the limit is {self.limit}",
            "entries": f"there are more than {self.limit} files and folders",
            "depth": f"folders are nested more than {self.limit} deep",
            "path": f"a path is {self.actual} bytes long, the limit is {self.limit}",
        }[self.what]
        return f"too much to collect: {sentence} (at {self.where})"


@dataclass(slots=True)
class Contents:
    """What is in a result. It is complete when the receipt is made, except for the last two."""

    names: dict[str, str]
    """Usual name of each file of the agent (``stdout.log``, ``ferryman.json``) -> its name in this
    ZIP."""
    path: Path
    """The ZIP."""
    files: int = 0
    """Files of the job."""
    bytes: int = 0
    """Their size before compression."""
    skipped: list[SkippedFile] = field(default_factory=list)
    skipped_more: int = 0
    """Number of skipped files that are not in the list, because its length is limited."""
    not_portable: NonPortableNames = field(default_factory=NonPortableNames)
    """Names in the ZIP that systems other than Linux cannot store."""
    children: int = 0
    """Folders ``children/NAME`` with a run.sh."""
    size: int = 0
    """Bytes of the ZIP, once it is finished."""
    sha256: str = ""
    """Of the finished ZIP, hex."""

    def skip(self, path: str, why: str) -> None:
        if len(self.skipped) < MAX_LISTED:
            self.skipped.append(SkippedFile(path=path, why=why))
        else:
            self.skipped_more += 1


def own_names(usual: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Names for the agent's files in a result. If the job has a file of that name, another is used.

    ``stdout.log`` becomes ``stdout.ferryman.log``, then ``stdout.ferryman.2.log`` and so on.

    Args:
        taken: folded names at the top of the job's directory.
    """
    used = set(taken)
    names: dict[str, str] = {}
    for name in usual:
        stem, dot, suffix = name.rpartition(".")
        candidate, serial = name, 0
        while fold(candidate) in used:
            serial += 1
            number = "" if serial == 1 else f".{serial}"
            candidate = f"{stem}.ferryman{number}{dot}{suffix}"
        used.add(fold(candidate))
        names[name] = candidate
    return names
