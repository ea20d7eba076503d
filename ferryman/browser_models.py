"""What browsers get: upload tickets, signed links, links that log in."""

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


class LoginLinkDoc(Wire):
    """A link that logs a browser in."""

    url: str
    """Good for one login; the dashboard's address, where no login is needed."""
    expires_at: AwareDatetime | None
    """None: no login is needed."""
