"""Which files of a folder are left out of a bundle, by patterns as in a .gitignore file.

A later pattern wins over an earlier one, and ``!`` takes a file back. A pattern without a slash in
it fits at any depth; ``**`` fits any number of folders; a slash at the end fits folders only. What
is in a folder that is left out is not looked at.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Final

from ferryman.errors import BadArgument, BadBundle

IGNORE_FILE: Final = ".ferrymanignore"
FORMER_RESULT: Final = re.compile(r"job-[0-9]+(-partial|-children|-attempt-[0-9]+)?(-new)?(\.zip)?")
"""The names under which results are saved."""
_RECEIPT: Final = "ferryman.json"
_MAX_RECEIPT: Final = 1 << 20
_MAX_PATTERNS: Final = 1 << 20
"""Bytes of an ignore file."""
_NOTHING: Final = re.compile("(?!)")
_VERSION_CONTROL: Final = frozenset({".git", ".hg", ".svn"})


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of an ignore file."""

    parts: tuple[re.Pattern[str] | None, ...]
    """One for each folder and the name; None fits any number of folders."""
    takes_back: bool
    folders_only: bool

    @classmethod
    def parse(cls, text: str, where: str) -> Pattern | None:
        """Args: where it stands, for the error. None: a comment, or an empty line.

        Raises:
            BadArgument: it means nothing.
        """
        words = text.rstrip("\r\n").rstrip(" ")
        if not words or words.startswith("#"):
            return None
        takes_back = words.startswith("!")
        pattern = words[takes_back:]
        folders_only = pattern.endswith("/")
        pattern = pattern.rstrip("/").removeprefix("\\")
        if not pattern:
            raise BadArgument(f"{where}: {words!r} is no pattern such as *.tmp or build/")
        steps = pattern.lstrip("/").split("/")
        parts = [None if one == "**" else re.compile(translate(one)) for one in steps]
        if "/" not in pattern:
            parts.insert(0, None)
        if steps[-1] == "**":  # what is in the folder, and not the folder
            parts.append(re.compile(translate("*")))
        return cls(tuple(parts), takes_back, folders_only)

    def fits(self, name: str) -> bool:
        """Whether the path does; what stands before ``**`` fits where it fits first, so no pattern
        takes long.
        """
        names, part, at, again, begun = name.split("/"), 0, 0, 0, 0
        while at < len(names):
            here = self.parts[part] if part < len(self.parts) else _NOTHING
            if here is None:
                part, again, begun = part + 1, part + 1, at
            elif here.fullmatch(names[at]):
                part, at = part + 1, at + 1
            elif again:
                begun += 1
                part, at = again, begun
            else:
                return False
        return not any(self.parts[part:])


def read_patterns(folder: Path) -> list[Pattern]:
    """Those of the folder's ignore file, if it has one.

    Raises:
        BadArgument: a line means nothing.
        BadBundle: the file cannot be read.
    """
    path = folder / IGNORE_FILE
    if not path.exists():
        return []
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_PATTERNS + 1)
        text = content.decode()
    except OSError as problem:
        raise BadBundle(f"{path}: {problem.strerror}", path) from problem
    except UnicodeDecodeError as problem:
        raise BadBundle(f"{path}: it is no text in UTF-8", path) from problem
    if len(content) > _MAX_PATTERNS:
        raise BadBundle(f"{path}: it is larger than 1 MiB", path)
    lines = enumerate(text.splitlines(), 1)
    return [one for at, line in lines if (one := Pattern.parse(line, f"{path}, line {at}"))]


class Ignore:
    """What to leave out of one folder; ``left_out`` collects what was.

    Args:
        patterns: the last one that fits decides.
        usual: also leave out what nobody means to send: version control, and former results.
    """

    def __init__(self, patterns: Sequence[Pattern], *, usual: bool) -> None:
        self._patterns, self._usual = patterns, usual
        self.left_out: list[str] = []

    def __call__(self, name: str, path: Path, is_folder: bool) -> bool:
        """Whether a file or folder is left out.

        Args:
            name: its path in the bundle.
        """
        leave = self._usual and _is_unusual(name, path, is_folder)
        for pattern in self._patterns:
            if pattern.fits(name) and (is_folder or not pattern.folders_only):
                leave = not pattern.takes_back
        if leave and name != IGNORE_FILE:
            self.left_out.append(f"{name}/" if is_folder else name)
        return leave


def _is_unusual(name: str, path: Path, is_folder: bool) -> bool:
    base = name.rpartition("/")[2]
    if base in _VERSION_CONTROL or name == IGNORE_FILE:
        return True
    if is_folder:
        return _is_result(path)
    return base.endswith(".zip") and FORMER_RESULT.fullmatch(base) is not None


def _is_result(folder: Path) -> bool:
    """Whether it is an unpacked result: those have a receipt."""
    receipt = folder / _RECEIPT
    with contextlib.suppress(OSError, ValueError):
        if receipt.stat().st_size <= _MAX_RECEIPT:
            content = json.loads(receipt.read_bytes())
            return isinstance(content, dict) and {"format", "job", "attempt"} <= content.keys()
    return False


def ignore_for(
    folder: Path, exclude: Iterable[str], *, everything: bool, option: str = "--exclude"
) -> Ignore:
    """What to leave out of a folder: the usual, then its ignore file's, then ``exclude``.

    Args:
        everything: only ``exclude``.

    Raises:
        BadArgument, BadBundle
    """
    patterns = [] if everything else read_patterns(folder)
    patterns += [one for text in exclude if (one := Pattern.parse(text, option))]
    return Ignore(patterns, usual=not everything)
