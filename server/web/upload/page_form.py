"""What the page's form has beside an upload's fields: a ``run.sh`` that was written there, and the
files of a former job.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.domain.errors import BadField, NotAllowed
from server.http.forms import CheckField, MakeSink
from server.http.uploads import UploadForm
from server.web.site.csrf import FIELD as CSRF
from shared.files.bundles.format import ENTRY, BundleSummary
from shared.files.bundles.reader import BundleReader
from shared.files.errors import BundleError
from shared.files.staged_file import ReserveSpace
from shared.multipart.limits import FormLimits
from shared.multipart.parser import FilePart
from shared.multipart.sinks import BundleSink

SCRIPT: Final = "script"
"""Text field that becomes the file ``run.sh``, where no such file is sent."""
KEEP: Final = "keep"
"""Text field: the files of the former bundle are sent along."""
FROM: Final = "from"
"""Parameter of the query: the job that it is of."""
_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class FormerBundle:
    """A stored bundle, or one folder of it, which ends in "/"."""

    path: Path
    folder: str


class PageForm(UploadForm):
    """Checks all fields before it refuses, so that each error stands beside its field.

    Attributes:
        typed: fields as they came.
        errors: field -> what is wrong with it.
    """

    own = frozenset({SCRIPT, KEEP, FROM, CSRF})

    def __init__(self, former: FormerBundle | None = None) -> None:
        """Args: former: whose files are sent along, if the form says so."""
        self._former = former
        self.typed: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self._first: BadField | NotAllowed | None = None
        self.choose_sink = self._choose_sink

    def take(self, name: str, value: str, check: CheckField) -> None:
        self.typed[name] = value
        if name in self.own:
            return
        try:
            check(name, value)
        except (BadField, NotAllowed) as problem:
            self.errors[name] = str(problem)
            self._first = self._first or problem

    def _choose_sink(self, fields: Mapping[str, str]) -> MakeSink:
        # The page's fields stand before its files: with the first file, all are there.
        if self._first is not None:
            raise self._first
        return functools.partial(_PageSink, fields, self._former)


class _PageSink(BundleSink):
    """Adds files at the end of the form."""

    def __init__(
        self,
        fields: Mapping[str, str],
        former: FormerBundle | None,
        path: Path,
        limits: FormLimits,
        reserve: ReserveSpace,
    ) -> None:
        super().__init__(path, limits, "filename", reserve=reserve)
        self._fields, self._former = fields, former
        self._names: set[str] = set()
        self._has_archive = False

    def begin(self, part: FilePart) -> None:
        self._has_archive = self._has_archive or self.expands(part)
        self._names.add(part.filename)
        super().begin(part)

    def finish(self) -> BundleSummary:
        # Browsers send line ends as CRLF, which no shell understands.
        text = self._fields.get(SCRIPT, "").replace("\r\n", "\n").replace("\r", "\n")
        if text.strip() and self._has_archive:
            why = (
                "an archive that is expanded brings its own run.sh: leave this empty, "
                "or send the archive as a file beside it"
            )
            raise BundleError("archive_and_script", why, SCRIPT)
        if text.strip() and not any(map(_is_entry, self._names)):
            self.begin(FilePart("file", ENTRY))
            self.write((text.rstrip("\n") + "\n").encode())
            self.end()
        if self._former is not None and self._fields.get(KEEP) and not self._has_archive:
            self._add(self._former)
        return super().finish()

    def _add(self, former: FormerBundle) -> None:
        """The files of the bundle that were not sent in another version."""
        try:
            bundle = BundleReader(former.path)
        except FileNotFoundError:
            why = "the files of the former job were removed meanwhile: send them all"
            raise BundleError("former_files_gone", why, KEEP) from None
        with bundle:
            for name in bundle.inside(former.folder):
                if name not in self._names:
                    self.begin(FilePart("file", name))
                    for piece in bundle.content(former.folder + name, _CHUNK):
                        self.write(piece)
                    self.end()


def _is_entry(name: str) -> bool:
    """At the root, or in the one folder that may stand around all files."""
    folder, _, last = name.rpartition("/")
    return last == ENTRY and "/" not in folder
