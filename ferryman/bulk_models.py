"""The documents about many jobs at once."""

from __future__ import annotations

from ferryman.models import Wire


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
