"""The documents about files of jobs, exactly as they are on the wire."""

from __future__ import annotations

from pydantic import AwareDatetime

from ferryman.models import Wire


class FileDoc(Wire):
    """A file that an attempt left, or that is there while it runs."""

    path: str
    """As in the ZIP, with ``/`` between folders."""
    size: int
    """Bytes."""
    type: str
    """Media type, guessed from its name: ``text/plain``, ``application/octet-stream``."""
    modified_at: AwareDatetime | None = None
    """To two seconds; None: not known."""


class FilePage(Wire):
    """``GET /api/v1/jobs/{id}/files``."""

    attempt: int
    """Whose files they are."""
    running: bool
    """It has not ended: files come, grow and go."""
    items: list[FileDoc]
    next: str | None
    """Cursor of the next page; None on the last."""
