"""A signed link to a job, made on its page and shown once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from server.domain.permits import Shows

DURATIONS: Final = (("1h", "1 hour"), ("1d", "1 day"), ("7d", "7 days"), ("30d", "30 days"))
WHAT: Final = (
    (Shows.JOB, "This page, with its log, files and result"),
    (Shows.RESULT, "The result (ZIP) only"),
    (Shows.FILE, "One file of the result"),
)


@dataclass(frozen=True, slots=True)
class LinkForm:
    """What was typed into the form, and what came of it.

    Attributes:
        url: of the link that was made.
        field: the one that is wrong, with the ``error``.
    """

    what: str = Shows.JOB
    expires_in: str = "7d"
    path: str = ""
    url: str = ""
    expires_at: datetime | None = None
    field: str = ""
    error: str = ""
    durations: tuple[tuple[str, str], ...] = DURATIONS
    kinds: tuple[tuple[Shows, str], ...] = WHAT


FORM: Final = LinkForm()
