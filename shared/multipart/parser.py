"""A push parser for multipart/form-data, with limits on everything that it keeps in memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from shared.files.names import BundleError, cut, shown
from shared.multipart.headers import BadHeader, disposition


@dataclass(frozen=True)
class FormLimits:
    """Bounds of one form; sizes in bytes."""

    max_bytes: int
    """Of all files together: as sent, and again when an archive is expanded."""
    max_files: int = 10_000
    max_fields: int = 64
    """Text fields."""
    max_field_bytes: int = 65_536
    max_header_bytes: int = 16_384
    """Of one part's headers; of what may stand before the first part and behind the last."""
    portable: bool = False
    """Refuse names that Linux can store and other systems cannot; False: only warn."""

    @property
    def max_overhead(self) -> int:
        """What may come beside the files' content: 2 KiB for each part, and the fields."""
        parts = self.max_files + self.max_fields
        return parts * 2048 + self.max_fields * self.max_field_bytes + 4 * self.max_header_bytes


class FormRefused(Exception):
    """A form that is not taken; nothing of it is left on the disk.

    Attributes:
        status: of the HTTP answer: 400, 413 or 415.
        code: short, snake_case, stable.
        part: the field, file or archive entry at fault as its sender named it, cut where it is
            long, or None.
        message: a sentence for people; it names the part.
    """

    def __init__(self, status: int, code: str, message: str, part: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.part, self.message = status, code, cut(part), message

    @classmethod
    def of_bundle(cls, problem: BundleError) -> FormRefused:
        """The same refusal, with the status that goes with it."""
        status = 413 if problem.code in {"too_large", "too_many_files"} else 400
        return cls(status, problem.code, problem.message, problem.part)


_SMALL: Final = 4096
"""Pieces up to this are copied: a view would keep the whole chunk in memory."""
_MAX_HEADERS: Final = 16
_PLAIN_ENCODINGS: Final = frozenset({"7bit", "8bit", "binary"})

# The library logs a warning for each malformed body; here the refusal says it, once.
_SILENT: Final = logging.getLogger("shared.multipart.parser")
_SILENT.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part that is a file."""

    field: str
    """Name of the form's field."""
    filename: str


class FormHandler(Protocol):
    """Called with what the body contains, in its order."""

    def field(self, name: str, value: str) -> None: ...
    def file_begins(self, part: FilePart) -> None: ...
    def file_data(self, data: bytes | memoryview) -> None: ...
    def file_ends(self) -> None: ...


class FormParser:
    """Parses a form: ``feed`` it the body in pieces, then ``close`` it.

    Any part with a file name is a file, whatever its field's name. A file part with an empty name
    and no content is what a browser sends for a file input that was left alone: it is ignored.

    Args:
        quoted_whole: see :func:`~shared.multipart.headers.disposition`.

    Raises:
        FormRefused: from ``feed`` and ``close``. What the handler raises passes through.
    """

    def __init__(
        self,
        boundary: bytes,
        limits: FormLimits,
        handler: FormHandler,
        *,
        quoted_whole: bool = False,
    ) -> None:
        self._limits, self._handler = limits, handler
        self._quoted_whole = quoted_whole
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_name_data,
                "on_header_value": self._header_value_data,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=limits.max_header_bytes,
        )
        self._parser.logger = _SILENT
        self._delimiter = b"\r\n--" + boundary
        self._chunk = b""
        self._in_content = False
        """The chunk that was fed last ended within a part's content: no delimiter began in it."""
        self._parts = self._fields = 0
        self._outside = 0  # bytes before the first part and behind the last
        self._body = self._content = 0
        self._ended = False
        self._in_header = False
        self._header_bytes = 0
        self._key, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._label: str | None = None
        self._file: FilePart | None = None
        self._field: str | None = None
        self._text = bytearray()

    def feed_content(self, chunk: bytes) -> bool:
        """Take the next piece of the body if all of it is content of the part that goes on: most
        pieces of a large file are. Whether that is so; if not, ``feed`` it.
        """
        if not self._in_content or self._delimiter in chunk:
            return False
        # The tail may be the begin of a delimiter, in which only its first byte is a CR.
        last = chunk.rfind(b"\r", max(0, len(chunk) - len(self._delimiter) + 1))
        if last >= 0 and self._delimiter.startswith(chunk[last:]):
            return False
        self._body += len(chunk)
        self._part_data(chunk, 0, len(chunk))
        return True

    def delimiters(self, chunk: bytes) -> int:
        """How many there are: parsing one costs as much as copying many kilobytes."""
        return chunk.count(self._delimiter)

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the body."""
        ended = self._ended
        self._body += len(chunk)
        self._chunk, self._in_content = chunk, False
        try:
            self._parser.write(chunk)
        except FormParserError as problem:
            raise self._malformed(problem) from None
        finally:
            self._chunk = b""  # not to be held
        if not self._parts or ended:
            self._outside += len(chunk)
            if self._outside > self._limits.max_header_bytes:
                where = "behind its closing boundary" if ended else "before its first boundary"
                code = "trailing_data" if ended else "no_first_boundary"
                raise FormRefused(400, code, f"the body has too many bytes {where}")
        if self._body - self._content > self._limits.max_overhead:
            raise FormRefused(
                413, "too_much_overhead", "the form has too many bytes around its files"
            )

    def close(self) -> None:
        """The body is complete."""
        if not self._ended:
            where = f" in the middle of {self._name()}" if self._parts else ""
            message = f"the body is cut short: it ends{where} without its closing boundary"
            raise FormRefused(400, "body_cut_short", message, self._label)

    def _malformed(self, problem: FormParserError) -> FormRefused:
        if not self._parts:
            message = "the body does not begin with the boundary of its Content-Type header"
            return FormRefused(400, "no_first_boundary", message)
        if self._in_header:
            limit = self._limits.max_header_bytes
            message = f"{self._name()}: its headers are malformed or longer than {limit} bytes"
            return FormRefused(400, "bad_header", f"{message} ({problem})", self._label)
        message = f"the form is malformed behind {self._name()} ({problem})"
        return FormRefused(400, "malformed", message, self._label)

    def _name(self) -> str:
        number = f"part {self._parts} of the form"
        return number if self._label is None else f"{number}, {shown(self._label)}"

    def _refused(self, status: int, code: str, why: str) -> FormRefused:
        return FormRefused(status, code, f"{self._name()}: {why}", self._label)

    # What the parser calls.

    def _part_begin(self) -> None:
        self._parts += 1
        self._in_header = True
        self._header_bytes = 0
        self._headers.clear()
        self._label = self._file = self._field = None

    def _header_name_data(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._key += data[start:end]

    def _header_value_data(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _count_header(self, length: int) -> None:
        self._header_bytes += length
        if self._header_bytes > self._limits.max_header_bytes:
            limit = self._limits.max_header_bytes
            raise self._refused(400, "bad_header", f"its headers are longer than {limit} bytes")

    def _header_end(self) -> None:
        key = bytes(self._key).lower()
        if key in self._headers:
            raise self._refused(400, "bad_header", f"it has two {key.decode('ascii')} headers")
        self._headers[key] = bytes(self._value)
        self._key.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        self._in_header = False
        header = self._headers.get(b"content-disposition")
        if header is None:
            raise self._refused(400, "bad_header", "it has no Content-Disposition header")
        try:
            parsed = disposition(header, quoted_whole=self._quoted_whole)
        except BadHeader as problem:
            raise self._refused(400, problem.code, problem.message) from None
        self._label = parsed.filename or parsed.name
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding.decode("latin-1") not in _PLAIN_ENCODINGS:
            raise self._refused(400, "bad_header", "it has a Content-Transfer-Encoding")
        if parsed.filename is None:
            self._begin_field(parsed.name)
        elif parsed.filename:
            self._file = FilePart(parsed.name, parsed.filename)
            self._handler.file_begins(self._file)

    def _begin_field(self, name: str) -> None:
        self._fields += 1
        if self._fields > self._limits.max_fields:
            limit = self._limits.max_fields
            raise self._refused(413, "too_many_fields", f"the form has more than {limit} fields")
        self._field = name
        self._text.clear()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if data is self._chunk and end == len(data):
            self._in_content = True
        if self._file is not None:
            self._content += end - start
            if self._content > self._limits.max_bytes:
                limit = self._limits.max_bytes
                why = f"the files are larger than the limit of {limit} bytes"
                raise self._refused(413, "too_large", why)
            if end - start == len(data):
                self._handler.file_data(data)
            elif end - start <= _SMALL:
                self._handler.file_data(data[start:end])
            else:
                self._handler.file_data(memoryview(data)[start:end])
        elif self._field is None:
            raise self._refused(400, "no_file_name", "it is a file without a name")
        else:
            self._text += data[start:end]
            if len(self._text) > self._limits.max_field_bytes:
                limit = self._limits.max_field_bytes
                why = f"this text field is longer than {limit} bytes"
                raise self._refused(413, "field_too_long", why)

    def _part_end(self) -> None:
        if self._file is not None:
            self._handler.file_ends()
        elif self._field is not None:
            try:
                value = self._text.decode()
            except UnicodeDecodeError:
                why = "this text field is not valid UTF-8"
                raise self._refused(400, "bad_utf8", why) from None
            self._handler.field(self._field, value)

    def _end(self) -> None:
        self._ended = True
