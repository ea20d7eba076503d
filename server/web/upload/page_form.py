"""What the page's form has beside an upload's fields: a ``run.sh`` that was written there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from server.domain.errors import BadField, NotAllowed
from server.http.forms import CheckField
from server.http.uploads import UploadForm
from server.web.site.csrf import FIELD as CSRF
from shared.files.bundles.format import ENTRY, BundleSummary
from shared.files.bundles.writer import ReserveSpace
from shared.files.errors import BundleError
from shared.multipart.limits import FormLimits
from shared.multipart.parser import FilePart
from shared.multipart.sinks import BundleSink, Sink

SCRIPT: Final = "script"
"""Text field that becomes the file ``run.sh``, where no such file is sent."""


class PageForm(UploadForm):
    """Checks all fields before it refuses, so that each error stands beside its field.

    Attributes:
        typed: fields as they came.
        errors: field -> what is wrong with it.
    """

    own = frozenset({SCRIPT, CSRF})

    def __init__(self) -> None:
        self.typed: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self._first: BadField | NotAllowed | None = None
        self.make_sink = self._make_sink

    def take(self, name: str, value: str, check: CheckField) -> None:
        self.typed[name] = value
        if name in self.own:
            return
        try:
            check(name, value)
        except (BadField, NotAllowed) as problem:
            self.errors[name] = str(problem)
            self._first = self._first or problem

    def _make_sink(
        self, path: Path, limits: FormLimits, reserve: ReserveSpace, fields: Mapping[str, str]
    ) -> Sink:
        # The page's fields stand before its files: with the first file, all are there.
        if self._first is not None:
            raise self._first
        return _PageSink(path, limits, reserve, fields)


class _PageSink(BundleSink):
    """Adds the script at the end of the form."""

    def __init__(
        self, path: Path, limits: FormLimits, reserve: ReserveSpace, fields: Mapping[str, str]
    ) -> None:
        super().__init__(path, limits, "filename", reserve=reserve)
        self._fields = fields
        self._has_script = self._has_archive = False

    def begin(self, part: FilePart) -> None:
        self._has_archive = self._has_archive or self.expands(part)
        # At the root, or in the one folder that may stand around all files.
        folder, _, name = part.filename.rpartition("/")
        self._has_script = self._has_script or (name == ENTRY and "/" not in folder)
        super().begin(part)

    def finish(self) -> BundleSummary:
        # Browsers send line ends as CRLF, which no shell understands.
        text = self._fields.get(SCRIPT, "").replace("\r\n", "\n").replace("\r", "\n")
        if text.strip() and not self._has_script:
            if self._has_archive:
                why = (
                    "an archive that is expanded brings its own run.sh: leave this empty, "
                    "or send the archive as a file beside it"
                )
                raise BundleError("archive_and_script", why, SCRIPT)
            super().begin(FilePart("file", ENTRY))
            self.write((text.rstrip("\n") + "\n").encode())
            self.end()
        return super().finish()
