"""Which files ``ferryman submit`` sends, and what it says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from ferryman.bundle import BundleFile, Files, gather
from ferryman.cli import show
from ferryman.ignore import Ignore, Pattern, ignore_for
from ferryman.units import say_count, say_size

_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Selection:
    """What is sent, and what of the folders is left out."""

    parts: Sequence[BundleFile]
    left_out: Sequence[str]

    @property
    def files(self) -> Files:
        """For :meth:`ferryman.Client.submit`."""
        if self.is_archive:
            assert isinstance(self.parts[0].source, Path)
            return self.parts[0].source
        return {part.name: part.source for part in self.parts}

    @property
    def is_archive(self) -> bool:
        return self.parts[0].field == "bundle"

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.size for part in self.parts)

    def summary(self) -> str:
        """``12 files (3.4 MiB)``."""
        what = self.parts[0].name if self.is_archive else say_count(len(self.parts), "file")
        return f"{what} ({say_size(self.size)})"

    def lines(self) -> list[str]:
        """What is sent, and what is not, for people."""
        lines = [f"sending {self.summary()}"]
        if self.left_out:
            named = ", ".join(self.left_out[:_MOST_NAMED])
            more = len(self.left_out) - _MOST_NAMED
            named += f" and {more} more" if more > 0 else ""
            lines.append(f"left out: {named} (--everything sends them)")
        return lines


def select(paths: Sequence[Path], exclude: Sequence[str], *, everything: bool) -> Selection:
    """The files of a bundle.

    Args:
        exclude: patterns, which hold for files that are named, too.
        everything: leave out only what ``exclude`` says.

    Raises:
        BadArgument, BadBundle
    """
    rules: list[Ignore] = []

    def leave_out(folder: Path) -> Ignore:
        rules.append(ignore_for(folder, exclude, everything=everything))
        return rules[-1]

    patterns = [one for text in exclude if (one := Pattern.parse(text, "--exclude"))]
    named = Ignore(patterns, usual=False)
    alone = len(paths) == 1
    kept = [path for path in paths if alone or path.is_dir() or not named(path.name, path, False)]
    parts = gather(kept, leave_out)
    return Selection(parts, [*named.left_out, *(name for one in rules for name in one.left_out)])


def show_selection(selection: Selection, *, json: bool) -> None:
    """All of it on stdout, for ``--dry-run``."""
    if json:
        files = [{"name": part.name, "size": part.size} for part in selection.parts]
        left_out = list(selection.left_out)
        show.print_documents([{"files": files, "size": selection.size, "left_out": left_out}])
        return
    for part in selection.parts:
        typer.echo(f"{part.size}\t{show.printable(part.name)}")
    for name in selection.left_out:
        show.print_message(f"left out: {name}")
    show.print_message(f"{selection.summary()} would be sent; nothing was")
