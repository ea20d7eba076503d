"""The last lines of a log, for messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_TAIL_READ: Final = 1 << 13
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 20


def log_tail(path: Path) -> str:
    """The last lines of a log; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_READ))
            return last_lines(file.read())
    except OSError:
        return ""


def last_lines(data: bytes) -> str:
    """The last lines, complete if possible, without characters that control a terminal.

    Args:
        data: the end of the log, as it is on disk.
    """
    cut = len(data) > _TAIL_BYTES
    text = data[-_TAIL_BYTES:].decode(errors="replace").replace("\r\n", "\n").rstrip("\n")
    lines = text.split("\n")
    if cut and len(lines) > 1:
        lines = lines[1:]  # the first one is not complete
    return "\n".join(_plain(line) for line in lines[-_TAIL_LINES:])[-_TAIL_BYTES:]


def _plain(line: str) -> str:
    return "".join(
        char
        if char.isprintable() or char == "\t"
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in line
    )
