"""The documents about many jobs at once."""

from __future__ import annotations

from ferryman.models import Wire


class TagPage(Wire):
    """``GET /api/v1/tags/{tag}``."""

    tag: str
    ids: list[int]
    """The newest first."""
    next: str | None
    """Cursor of the next page; None on the last."""


class BulkItem(Wire):
    """What became of one job."""

    id: int
    ok: bool
    code: str
    """``requested``, ``queued``, ``deleted``, ``tagged``, ``moved``, ``cancelled``,
    ``already_ended``; or why not."""
    message: str


class BulkAnswer(Wire):
    """``POST /api/v1/jobs/bulk``."""

    items: list[BulkItem]
    more: bool
    """There may be further jobs that fit: ask again with ``next`` as ``cursor``."""
    next: str | None = None
