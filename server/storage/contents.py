"""Stored bundles and results: small ones are rows of the database, others files of a storage.

A row is written with the job or the end that refers to it and deleted with the last one that does,
each in one transaction, so it needs no fsync of its own and never becomes an orphan.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from server.domain.jobs import ROW_BYTES, Bundle, FileKind, Result
from server.storage.folder import PendingFiles, Storage
from server.storage.scratch import NoSpace, Scratch, ScratchFile
from shared.files.durable import write_all
from shared.files.opened import closing_fd


@contextmanager
def memory_file(content: bytes) -> Iterator[Path]:
    """A path at which the bytes can be read in this block, for what needs one."""
    with closing_fd(os.memfd_create("content")) as fd:
        write_all(fd, content)
        yield Path(f"/proc/self/fd/{fd}")


class Contents:
    """Reads them, wherever they are.

    Args:
        row: gives the bytes of a row by its name; None: there is none.
    """

    def __init__(
        self, storage: Storage, scratch: Scratch, row: Callable[[str], Awaitable[bytes | None]]
    ) -> None:
        self._storage, self._scratch, self._row = storage, scratch, row

    async def keep(
        self, pending: PendingFiles, content: ScratchFile | bytes, size: int
    ) -> tuple[str, bytes | None]:
        """Store what a row is about to refer to.

        Returns:
            Its name, and the bytes that are to be written with that row, if they are few.

        Raises:
            OSError
        """
        if size > ROW_BYTES:
            return await pending.put(content), None
        if await self._scratch.too_full_for(size) is not None:
            raise NoSpace
        if isinstance(content, ScratchFile):
            content = await asyncio.to_thread(content.path.read_bytes)
        return self._storage.new_name(), content

    async def small(self, stored: Bundle | Result) -> bytes | None:
        """All of it, if it is small; None: it is a file, or gone."""
        if stored.content is not None or stored.size > ROW_BYTES:
            return stored.content  # of a new one, whose row is still to be written
        return await self._row(stored.file)

    @asynccontextmanager
    async def local_copy(self, kind: FileKind, stored: Bundle | Result) -> AsyncIterator[Path]:
        """A path to read it at in this block, for what needs one; not to be written. One that is
        gone is missed when the path is opened.
        """
        if (content := await self.small(stored)) is not None:
            with memory_file(content) as path:
                yield path
        else:
            yield self._storage.path(kind, stored.file)

    @asynccontextmanager
    async def open(
        self, kind: FileKind, stored: Bundle | Result
    ) -> AsyncIterator[AsyncIterable[bytes]]:
        """Its bytes. Raises OSError: it cannot be read, or is not as long as it was."""
        if (content := await self.small(stored)) is not None:
            yield _one(content)
            return
        async with self._storage.open(kind, stored.file) as stream:
            if stream.size != stored.size:
                raise OSError(errno.EIO, "it is not as long as it was")
            yield stream


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content
