"""What people without a token get: upload tickets and signed links."""

from __future__ import annotations

from pydantic import AwareDatetime

from ferryman.models import Wire


class TicketDoc(Wire):
    """An upload ticket."""

    ticket: str
    upload_url: str
    """Where a form is posted to, ticket included; good for one upload."""
    expires_at: AwareDatetime


class LinkDoc(Wire):
    """A signed link."""

    url: str
    link: str
    """What the address ends in: as far as it is for them, other routes of the job take it, too."""
    expires_at: AwareDatetime
