"""The files of an attempt that runs, as its agent shows them to its server."""

from __future__ import annotations

from typing import Final

from pydantic import Field, FiniteFloat

from shared.wire import Int64, Wire

FILE_SIZE: Final = "Ferryman-File-Size"
"""Header of an agent's answer with a file of an attempt that runs: its bytes now."""


class RunningFile(Wire):
    """A file of an attempt that runs."""

    path: str
    size: Int64 = Field(ge=0)
    modified: FiniteFloat
    """Seconds since 1970."""


class RunningFiles(Wire):
    """``GET /payloads/{id}/files``."""

    files: list[RunningFile]
    more: bool
    """Others follow behind the last one."""
