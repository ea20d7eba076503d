"""Results of several jobs as one ZIP, each below a folder of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, Final, TypeAlias

from server.domain.jobs import Bundle, FileKind, Job, Result
from server.storage.contents import Contents
from server.storage.scratch import Scratch
from shared.files.archives.merge import Merge, Source
from shared.files.bundles.reader import Hash, hashed
from shared.files.names import BundleError
from shared.files.opened import closing_fd, to_end

Run: TypeAlias = Callable[..., Awaitable[Any]]
_IN_MEMORY: Final = 128 << 10
"""Bytes of a table of contents, of each that is sent; so a full disk keeps nobody from a result."""
_NOTED: Final = 1_000
"""Results that a note names; of the others it says how many."""


@dataclass(frozen=True, slots=True)
class Part:
    """A result, and the folder that it is put into."""

    prefix: str
    """Ends in "/"; no two are the same, and none is below another. Empty: it is the only one."""
    result: Result
    bundle: Bundle | None = None
    """Of whose files it has those that it refers to; None: without them."""
    folder: str = ""
    """Of the bundle: the root of the attempt, ending in "/"."""

    @property
    def etag(self) -> str:
        """Of the ZIP that is made of it alone; where that is not as it is stored, no digest."""
        if not self.result.inputs or self.bundle is None:
            return self.result.sha256
        what = f"{self.result.sha256}/{self.bundle.digest}/{self.folder}"
        return hashlib.sha256(what.encode()).hexdigest()


def given_bundle(job: Job) -> Bundle | None:
    """Whose files are given with a job's result, as far as it refers to them; None: the job has
    asked for what is new only.
    """
    return job.bundle if job.result_files == "all" else None


class UnusableResult(Exception):
    """A result is gone or damaged.

    Attributes:
        part: which one.
        why: a phrase.
        gone: it is not there, rather than damaged.
    """

    def __init__(self, part: Part, problem: BundleError | FileNotFoundError) -> None:
        self.gone = isinstance(problem, FileNotFoundError)
        self.part = part
        self.why = problem.message if isinstance(problem, BundleError) else "its result is gone"
        super().__init__(f"{part.prefix}: {self.why}")


class MergedResults:
    """The ZIP, which is made while it is read.

    Attributes:
        size: bytes of the whole.
        entries: files and folders.
        left_out: prefixes of the results that could not be used.
    """

    def __init__(self, contents: Contents, merge: Merge, note: str | None, run: Run) -> None:
        self._contents, self._merge, self._note = contents, merge, note
        self._run = run
        self._taken: list[Part] = []
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
                async with local_copies(self._contents, part) as paths:
                    await self._run(_add, self._merge, part, *paths)
            except (BundleError, FileNotFoundError) as problem:
                unusable = UnusableResult(part, problem)
                if self._note is None:
                    raise unusable from None
                self.left_out.append(part.prefix)
                if len(problems) < _NOTED:
                    problems.append(str(unusable))
            else:
                self._taken.append(part)
        text = b""
        if self._note is not None and problems:
            if more := len(missing) + len(self.left_out) - len(problems):
                problems.append(f"and {more} more")
            text = "\n".join(["These results are left out:", *problems, ""]).encode()
        await self._run(self._merge.end, self._note or "", text)
        self.size, self.entries = self._merge.size, self._merge.entries

    async def chunks(
        self, start: int = 0, stop: int | None = None, digest: Hash | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes from ``start`` up to, not including, ``stop``.

        Args:
            digest: to which they are added.

        Raises:
            BundleError: a result has changed, or is damaged.
            FileNotFoundError: one is gone.
        """
        for number, first, last in self._merge.parts(start, self.size if stop is None else stop):
            if number == len(self._taken):
                async for piece in self._pieces(self._merge.tail(first, last), digest):
                    yield piece
                return
            part = self._taken[number]
            async with local_copies(self._contents, part) as paths:
                pieces = _copy(self._merge, part, (number, first, last), *paths)
                async for piece in self._pieces(pieces, digest):
                    yield piece

    async def _pieces(self, pieces: Iterator[bytes], digest: Hash | None) -> AsyncIterator[bytes]:
        if digest is not None:
            pieces = hashed(pieces, digest)
        while (piece := await self._run(next, pieces, None)) is not None:
            if piece:
                yield piece


async def _in_thread(work: Callable[..., Any], *args: Any) -> Any:
    return await to_end(partial(work, *args))


@asynccontextmanager
async def merged_results(
    contents: Contents,
    scratch: Scratch,
    parts: Sequence[Part],
    *,
    note: str | None = None,
    missing: Sequence[str] = (),
    run: Run = _in_thread,
) -> AsyncIterator[MergedResults]:
    """A ZIP of all parts, in their order. The results are read twice: directories first.

    Args:
        note: name of a file at the root that says which results are left out, because they are gone
            or damaged; there only if one is. None: such a result is an error.
        missing: lines for it about results that there never were.
        run: calls a function in a thread, with arguments, and waits for its end.

    Raises:
        UnusableResult
        OSError: the disk is too full for a large table of contents.
    """
    async with scratch.file() as file:
        file.made = False  # what is larger than memory may be has no name
        listed = 0

        def reserve(count: int) -> None:
            nonlocal listed
            before, listed = listed, listed + count
            if listed > _IN_MEMORY:
                file.reserve(count if before > _IN_MEMORY else listed)

        with SpooledTemporaryFile(_IN_MEMORY, dir=str(file.path.parent)) as directory:
            merged = MergedResults(contents, Merge(directory, reserve), note, run)
            await merged.add(parts, missing)
            yield merged


@asynccontextmanager
async def local_copies(contents: Contents, part: Part) -> AsyncIterator[tuple[Path, Path | None]]:
    """Paths of the result, and of the bundle if it is needed."""
    async with AsyncExitStack() as stack:
        copy = contents.local_copy
        result = await stack.enter_async_context(copy(FileKind.RESULT, part.result))
        bundle = None
        if part.result.inputs and part.bundle is not None:
            bundle = await stack.enter_async_context(copy(FileKind.BUNDLE, part.bundle))
        yield result, bundle


def _add(merge: Merge, part: Part, result: Path, bundle: Path | None) -> None:
    with opened_source(part, result, bundle) as source:
        merge.add(source)


def _copy(
    merge: Merge, part: Part, which: tuple[int, int, int], result: Path, bundle: Path | None
) -> Iterator[bytes]:
    with opened_source(part, result, bundle) as source:
        yield from merge.copy(source, *which)


@contextmanager
def opened_source(part: Part, result: Path, bundle: Path | None) -> Iterator[Source]:
    """What is read of a part. Blocking."""
    with ExitStack() as stack:

        def opened(path: Path) -> int:
            return stack.enter_context(closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)))

        sent = None if bundle is None else opened(bundle)
        yield Source(part.prefix, opened(result), part.result.inputs, sent, part.folder)
