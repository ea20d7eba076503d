"""The lines of an array's file: each becomes a variable of a child."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shared.files.bundles.reader import BundleReader
from shared.files.names import BundleError
from shared.wire import MAX_LINE

_CHUNK: Final = 1 << 18


def array_lines(bundle: Path, name: str) -> Iterator[str]:
    """The lines of a file of a sealed bundle without their ends (LF or CRLF), empty ones too.
    Blocking; memory for one line.

    Raises:
        BundleError: there is no such file; or a line is too long, has a NUL or is not UTF-8, and so
            cannot be a variable.
        OSError
    """
    with BundleReader(bundle) as reader:
        try:
            pieces = reader.content(name, _CHUNK)
        except KeyError:
            raise BundleError("no_such_file", "the bundle has no such file", name) from None
        rest, count = b"", 0
        for piece in pieces:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield _text(line, name, count)
                count += 1
            _check(rest, name, count)
        if rest:
            yield _text(rest, name, count)


def _text(line: bytes, name: str, number: int) -> str:
    _check(line, name, number)
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise BundleError("line_not_utf8", f"line {number + 1} is not UTF-8", name) from None


def _check(line: bytes, name: str, number: int) -> None:
    """Of a line that may go on, too."""
    if len(line) > MAX_LINE + 1:
        message = f"line {number + 1} is longer than {MAX_LINE} bytes"
        raise BundleError("line_too_long", message, name)
    if b"\0" in line:
        raise BundleError("nul_in_line", f"line {number + 1} has a NUL character", name)
