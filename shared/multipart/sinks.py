"""Where the files of a form go. Everything here blocks: it runs in a worker thread."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Final, Literal, Protocol

from shared.files.bundles.expand import expand, is_archive_name
from shared.files.bundles.format import Sealed
from shared.files.bundles.reader import MAX_FILES, BundleReader
from shared.files.bundles.stream_digests import Arriving
from shared.files.bundles.writer import BundleWriter, Data, Take, too_large
from shared.files.durable import WRITEBACK_BYTES, remove_quietly, start_writeback, write_all
from shared.files.errors import BundleError
from shared.multipart.limits import FormLimits
from shared.multipart.parser import FilePart

ARCHIVE_FIELD: Final = "bundle"
"""The form field whose archive is expanded."""

Naming = Literal["filename", "part"]


class Sink(Protocol):
    """Takes the files of one form, one after another. After an exception only ``abort`` is called.

    Raises:
        BundleError: the form is refused.
        OSError
    """

    def expands(self, part: FilePart) -> bool:
        """Whether finishing takes as long as this archive is expanded; asked on the loop."""
        ...

    def begin(self, part: FilePart) -> None: ...
    def write(self, data: Data) -> None: ...
    def end(self) -> None: ...
    def finish(self) -> Sealed:
        """Everything has come: check it and put it on the disk."""
        ...

    def abort(self) -> None:
        """Leave nothing behind; also before anything was begun."""
        ...


class BundleSink:
    """Writes the files into a bundle; expands the archive, where the only file is one.

    Args:
        staging: where the bundle is written; an archive waits beside it as ``….archive``.
        naming: whose path a file has: "filename", as sent by people's programs; or "part": the
            field's name, as a job-orchestrator server sends it.
        archives: whether a file named ``….zip``, ``.tar``, ``.tar.gz`` or ``.tgz`` in the field
            ``bundle`` is expanded. In other fields, it is a file like others.
        take: called before so many more bytes are written; may raise OSError.
    """

    def __init__(
        self,
        staging: Path,
        limits: FormLimits,
        naming: Naming,
        *,
        archives: bool = True,
        take: Take | None = None,
    ) -> None:
        self._take = take
        self._staging, self._limits, self._naming = staging, limits, naming
        self._archives = archives
        self._spool = staging.with_name(staging.name + ".archive")
        self._writer: BundleWriter | None = None
        self._archive: tuple[FilePart, IO[bytes]] | None = None

    def expands(self, part: FilePart) -> bool:
        return self._archives and part.field == ARCHIVE_FIELD and is_archive_name(part.filename)

    def begin(self, part: FilePart) -> None:
        is_archive = self.expands(part)
        if self._archive is not None or (is_archive and self._writer is not None):
            why = "an archive in the field bundle must be the only file of the form"
            raise BundleError("archive_and_files", why, part.filename)
        if is_archive:
            self._archive = (part, self._spool.open("xb", buffering=0))
        else:
            self._open().add(part.filename if self._naming == "filename" else part.field)

    def _open(self) -> BundleWriter:
        if self._writer is None:
            limits = self._limits
            self._writer = BundleWriter(
                self._staging,
                max_files=limits.max_files,
                max_bytes=limits.max_bytes,
                portable=limits.portable,
                take=self._take,
            )
        return self._writer

    def write(self, data: Data) -> None:
        if self._archive is not None:
            if self._take is not None:
                self._take(len(data))
            write_all(self._archive[1].fileno(), data)
        else:
            self._open().write(data)

    def end(self) -> None:
        if self._archive is None:
            self._open().end()

    def finish(self) -> Sealed:
        writer = self._open()
        if self._archive is not None:
            part, spooled = self._archive
            spooled.close()
            expand(
                self._spool,
                part.filename,
                writer,
                max_files=self._limits.max_files,
                max_bytes=self._limits.max_bytes,
            )
            remove_quietly(self._spool)
        return writer.seal()

    def abort(self) -> None:
        if self._archive is not None:
            with contextlib.suppress(OSError):
                self._archive[1].close()
            remove_quietly(self._spool)
        if self._writer is not None:
            self._writer.abort()


class RawSink:
    """Stores a bundle that is sealed already, byte for byte, and checks that it is one.

    Args:
        staging: where it is stored.
        max_bytes: of the ZIP.
        field: of the form in which it comes; any other file is refused.
    """

    def __init__(
        self, staging: Path, *, max_bytes: int, max_files: int = MAX_FILES, field: str = "bundle"
    ) -> None:
        self._staging, self._max_bytes, self._max_files = staging, max_bytes, max_files
        self._field = field
        self._out: IO[bytes] | None = None
        self._arriving = Arriving(max_files)
        self._size = self._handed_over = 0

    def expands(self, part: FilePart) -> bool:
        return False

    def begin(self, part: FilePart) -> None:
        if part.field != self._field or self._out is not None:
            why = f"only one file is expected, in the field {self._field}"
            raise BundleError("unexpected_file", why, part.filename)
        self._out = self._staging.open("xb", buffering=0)

    def write(self, data: Data) -> None:
        if self._out is None:
            raise RuntimeError("begin() a file first")
        self._size += len(data)
        if self._size > self._max_bytes:
            raise too_large(self._max_bytes)
        self._arriving.feed(data)
        write_all(self._out.fileno(), data)
        if self._size >= self._handed_over + WRITEBACK_BYTES:
            start_writeback(self._out.fileno(), self._handed_over, self._size - self._handed_over)
            self._handed_over = self._size

    def end(self) -> None:
        pass

    def finish(self) -> Sealed:
        if self._out is None:
            raise BundleError("no_file", f"the form has no file in the field {self._field}")
        with BundleReader(self._staging, max_files=self._max_files) as bundle:
            sealed = bundle.sealed(self._arriving)
        os.fsync(self._out.fileno())
        self._out.close()
        return sealed

    def abort(self) -> None:
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()
            remove_quietly(self._staging)
