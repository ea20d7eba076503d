"""Results of several jobs as one ZIP, each below a folder of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from server.domain.jobs import FileKind, Result
from server.storage.contents import Contents
from server.storage.scratch import Scratch
from shared.files.archives.merge import Merge
from shared.files.names import BundleError
from shared.files.opened import closing_fd

Run: TypeAlias = Callable[..., Awaitable[Any]]
_NOTED: Final = 1_000
"""Results that a note names; of the others it says how many."""


@dataclass(frozen=True, slots=True)
class Part:
    """A result, and the folder that it is put into."""

    prefix: str
    """Ends in "/"; no two are the same, and none is below another."""
    result: Result


class UnusableResult(Exception):
    """A result is gone or damaged.

    Attributes:
        part: which one.
        why: a phrase.
    """

    def __init__(self, part: Part, why: str) -> None:
        super().__init__(f"{part.prefix}: {why}")
        self.part, self.why = part, why


class MergedResults:
    """``FileStream`` of the ZIP, which is made while it is read; it is read once.

    Attributes:
        size: bytes of the whole.
        entries: files and folders.
        left_out: prefixes of the results that could not be used.
    """

    def __init__(self, contents: Contents, merge: Merge, note: str | None, run: Run) -> None:
        self._contents, self._merge, self._note = contents, merge, note
        self._run = run
        self._taken: list[tuple[Part, int]] = []
        self._text = b""
        self.left_out: list[str] = []
        self.size = self.entries = 0

    async def add(self, parts: Sequence[Part], missing: Sequence[str] = ()) -> None:
        """Read the directories of all parts.

        Args:
            missing: lines for the note.

        Raises:
            UnusableResult, OSError
        """
        problems = list(missing[:_NOTED])
        for part in parts:
            try:
                async with self._contents.local_copy(FileKind.RESULT, part.result) as path:
                    length = await self._run(_add, self._merge, part, path)
            except (BundleError, FileNotFoundError) as problem:
                unusable = UnusableResult(part, _why(problem))
                if self._note is None:
                    raise unusable from None
                self.left_out.append(part.prefix)
                if len(problems) < _NOTED:
                    problems.append(str(unusable))
            else:
                self._taken.append((part, length))
        if self._note is not None and problems:
            if more := len(missing) + len(self.left_out) - len(problems):
                problems.append(f"and {more} more")
            self._text = "\n".join(["These results are left out:", *problems, ""]).encode()
            self._merge.add_text(self._note, self._text)
        await self._run(self._merge.end)
        self.size, self.entries = self._merge.size, self._merge.entries

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part, length in self._taken:
            async with self._contents.local_copy(FileKind.RESULT, part.result) as path:
                async for piece in self._pieces(_copy(self._merge, part, path, length)):
                    yield piece
        if self._note is not None and self._text:
            yield self._merge.text(self._note, self._text)
        async for piece in self._pieces(self._merge.tail()):
            yield piece

    async def _pieces(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (piece := await self._run(next, pieces, None)) is not None:
            yield piece


@asynccontextmanager
async def merged_results(
    contents: Contents,
    scratch: Scratch,
    parts: Sequence[Part],
    *,
    note: str | None = None,
    missing: Sequence[str] = (),
    run: Run = asyncio.to_thread,
) -> AsyncIterator[MergedResults]:
    """A ZIP of all parts, in their order. The results are read twice: directories first.

    Args:
        note: name of a file at the root that says which results are left out, because they are gone
            or damaged; there only if one is. None: such a result is an error.
        missing: lines for it about results that there never were.
        run: calls a function in a thread, with arguments.

    Raises:
        UnusableResult
        OSError: the disk is too full for the table of contents.
    """
    async with scratch.file() as file:
        merge = await asyncio.to_thread(lambda: Merge(file.path.open("x+b"), file.reserve))
        try:
            merged = MergedResults(contents, merge, note, run)
            await merged.add(parts, missing)
            yield merged
        finally:
            await asyncio.to_thread(merge.close)


def _add(merge: Merge, part: Part, path: Path) -> int:
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return merge.add(part.prefix, fd, *part.result.section)


def _copy(merge: Merge, part: Part, path: Path, length: int) -> Iterator[bytes]:
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        yield from merge.copy(part.prefix, fd, *part.result.section, length)


def _why(problem: BundleError | FileNotFoundError) -> str:
    return problem.message if isinstance(problem, BundleError) else "its result is gone"
