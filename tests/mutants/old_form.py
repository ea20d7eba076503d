"""Mutants in their old form: a text of a file, and what takes its place.

``old/*.txt`` holds them, by file: a line ``== FILE``; for each mutant its rule and what it takes
out, then the lines of the old text after ``- `` and those of the new one after ``+ ``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(__file__).parent / "old"


@dataclass(frozen=True, slots=True)
class Text:
    """A change of a file that removes one protection."""

    rule: str
    protection: str
    file: str
    old: str
    """Occurs exactly once in ``file``."""
    new: str

    @property
    def path(self) -> str:
        """The file, in the new form without its ending."""
        return self.file.partition(":")[0].replace(".", "/") if ":" in self.file else self.file

    @property
    def problem(self) -> str:
        """Why it cannot be used; "" if it can."""
        text = content(self.file)
        if self.old == self.new:
            return "it changes nothing"
        if (count := text.count(self.old)) != 1:
            return f"what it takes out occurs {count} times in {self.file}"
        return ""

    @property
    def changed(self) -> str:
        """The whole file with the change."""
        return content(self.file).replace(self.old, self.new)


@functools.cache
def content(file: str) -> str:
    path = ROOT / file
    return path.read_text() if path.is_file() else ""


def read(text: str) -> Iterator[Text]:
    for block in text.split("\n== "):
        file, _, rest = block.removeprefix("== ").partition("\n")
        told, old, new = "", [], []
        for line in [*rest.splitlines(), ""]:
            sign, after = line[:1], line[2:]
            if sign == "-" and line[1:2] in ("", " "):
                old.append(after)
            elif sign == "+" and line[1:2] in ("", " "):
                new.append(after)
            else:
                if told:
                    rule, _, protection = told.partition(" · ")
                    yield Text(rule, protection, file, "\n".join(old), "\n".join(new))
                told, old, new = line, [], []


def all_of_them(folder: Path = FOLDER) -> tuple[Text, ...]:
    return tuple(one for path in sorted(folder.glob("*.txt")) for one in read(path.read_text()))
