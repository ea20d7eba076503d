"""Sinks: where the files of a form are written. All of it blocks: for a worker thread."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, Literal, Protocol, TypeAlias

from shared.files.bundles.expand import expand, is_archive_name
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.writer import BundleWriter, Data
from shared.files.durable import remove_quietly, write_all
from shared.files.names import BundleError
from shared.files.staged_file import ReserveSpace
from shared.multipart.parser import FilePart, FormLimits

ARCHIVE_FIELD: Final = "bundle"
"""The form field whose archive is expanded."""

Naming = Literal["filename", "part"]

Step: TypeAlias = FilePart | Data | None
"""A file begins; some content of it; it ends."""
_MOST_STEPS: Final = 64
"""What is done on the event loop: each file costs about 50 µs."""
_HEADERS: Final = 512
_END: Final = 256
"""More than a ZIP has of a file beside its content and its names, and at its end."""


def _most_stored(step: Step) -> int:
    """Bytes that a step adds to a bundle, at most."""
    if isinstance(step, FilePart):
        return _HEADERS + 2 * len((step.field + step.filename).encode(errors="surrogateescape"))
    return 0 if step is None else len(step)


class Sink(Protocol):
    """Takes the files of one form, one after another. After an exception only ``abort`` is called.

    Raises:
        BundleError: the form is refused.
        OSError
    """

    def expands(self, part: FilePart) -> bool:
        """Whether finishing includes expanding this archive; called on the event loop."""
        ...

    def begin(self, part: FilePart) -> None: ...
    def write(self, data: Data) -> None: ...
    def end(self) -> None: ...
    def finish(self) -> BundleSummary:
        """All files are complete: check them, and close what is written."""
        ...

    def abort(self) -> None:
        """Remove everything; may be called before anything was begun."""
        ...


class BundleSink:
    """Writes the files into a bundle; expands an archive, if that is the only file.

    Args:
        staging: where the bundle is written; an archive is stored beside it as ``….archive`` first.
        naming: whose path a file has: "filename", as sent by people's programs; or "part": the
            field's name, as a job-orchestrator server sends it.
        archives: whether a file named ``….zip``, ``.tar``, ``.tar.gz`` or ``.tgz`` in the field
            ``bundle`` is expanded. In other fields, it is a file like others.
        reserve: called before so many more bytes are written; may raise OSError.
        keep: a bundle of so many bytes is not written: its summary has it.
    """

    def __init__(
        self,
        staging: Path,
        limits: FormLimits,
        naming: Naming,
        *,
        archives: bool = True,
        reserve: ReserveSpace | None = None,
        keep: int = 0,
    ) -> None:
        self._reserve, self._keep = reserve, keep
        self._staging, self._limits, self._naming = staging, limits, naming
        self._archives = archives
        self._archive_path = staging.with_name(staging.name + ".archive")
        self._writer: BundleWriter | None = None
        self._archive: tuple[FilePart, IO[bytes]] | None = None

    def expands(self, part: FilePart) -> bool:
        return self._archives and part.field == ARCHIVE_FIELD and is_archive_name(part.filename)

    def fits_in_memory(self, steps: Sequence[Step]) -> bool:
        """Whether all of it, with these steps and the end, blocks nowhere: it may be done on the
        event loop.
        """
        return len(steps) <= _MOST_STEPS and sum(map(_most_stored, steps), _END) <= self._keep

    def begin(self, part: FilePart) -> None:
        is_archive = self.expands(part)
        if self._archive is not None or (is_archive and self._writer is not None):
            why = "an archive in the field bundle must be the only file of the form"
            raise BundleError("archive_and_files", why, part.filename)
        if is_archive:
            self._archive = (part, self._archive_path.open("xb", buffering=0))
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
                reserve=self._reserve,
                keep=self._keep,
            )
        return self._writer

    def write(self, data: Data) -> None:
        if self._archive is not None:
            if self._reserve is not None:
                self._reserve(len(data))
            write_all(self._archive[1].fileno(), data)
        else:
            self._open().write(data)

    def end(self) -> None:
        if self._archive is None:
            self._open().end()

    def finish(self) -> BundleSummary:
        writer = self._open()
        if self._archive is not None:
            part, archive = self._archive
            archive.close()
            expand(
                self._archive_path,
                part.filename,
                writer,
                max_files=self._limits.max_files,
                max_bytes=self._limits.max_bytes,
            )
            remove_quietly(self._archive_path)
        return writer.finish()

    def abort(self) -> None:
        if self._archive is not None:
            with contextlib.suppress(OSError):
                self._archive[1].close()
            remove_quietly(self._archive_path)
        if self._writer is not None:
            self._writer.abort()
