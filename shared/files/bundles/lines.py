"""The lines of a file of a bundle, each of which is the task of an array's child."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from shared.files.errors import BundleError

MAX_LINE: Final = 64 << 10
"""Bytes. A line becomes a variable, of which Linux takes 128 KiB."""


def lines(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines without their ends (LF or CRLF), empty ones too; memory for one line.

    Args:
        pieces: the content of the file.
        name: of the file, for messages.

    Raises:
        BundleError: a line is too long, has a NUL or is not UTF-8, and so cannot be a variable.
    """
    rest, count = b"", 0
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield _whole(line, name, count)
            count += 1
        _check(rest, name, count)
    if rest:
        yield _whole(rest, name, count)


def _whole(line: bytes, name: str, number: int) -> bytes:
    _check(line, name, number)
    try:
        line.decode()
    except UnicodeDecodeError:
        raise BundleError("line_not_utf8", f"line {number + 1} is not UTF-8", name) from None
    return line.removesuffix(b"\r")


def _check(line: bytes, name: str, number: int) -> None:
    """Of a line that may go on, too."""
    if len(line) > MAX_LINE + 1:
        message = f"line {number + 1} is longer than {MAX_LINE} bytes"
        raise BundleError("line_too_long", message, name)
    if b"\0" in line:
        raise BundleError("nul_in_line", f"line {number + 1} has a NUL character", name)
