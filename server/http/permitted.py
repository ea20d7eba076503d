"""Requests that show an upload ticket or a signed link in place of a token."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aiohttp import web

from server.domain.errors import NotAllowed
from server.domain.permits import Link, PermitRefused, Permits, Shows, Ticket
from server.http.problems import BACK
from server.http.route import LINK_PARAMETER, TICKET_PARAMETER
from shared.clock import Clock
from shared.http.authentication import PRINCIPAL
from shared.principals import Principal, Role

TICKET: Final = web.RequestKey("ticket", Ticket)
"""The ticket of a request, which is good."""
_LINK: Final = web.RequestKey("link", Link)
BY_PERMIT: Final = frozenset({Role.TICKET, Role.LINK})


class SignedRequests:
    """Knows who asks by a ticket or link."""

    def __init__(self, permits: Permits, clock: Clock) -> None:
        self._permits, self._clock = permits, clock

    def principal(self, request: web.Request) -> Principal | None:
        """None: it shows neither. Without a role, and with the reason, if it is not good."""
        query = request.query_string
        if TICKET_PARAMETER not in query and LINK_PARAMETER not in query:
            return None
        now = self._clock.now()
        try:
            if (text := request.query.get(TICKET_PARAMETER)) is not None:
                ticket = self._permits.read(Ticket, text, now)
                request[TICKET] = ticket
                if ticket.return_to is not None:
                    request[BACK] = ticket.return_to
                return ticket.principal()
            if (text := request.query.get(LINK_PARAMETER)) is not None:
                link = self._permits.read(Link, text, now)
                request[_LINK] = link
                return link.principal()
        except PermitRefused as problem:
            return Principal("anonymous", None, why=str(problem), code=problem.code)
        return None


def check_permit(
    request: web.Request, *, by_link: Collection[Shows], by_ticket: bool = False
) -> None:
    """Refuse a ticket or link where the route does not say that it is good for it.

    Args:
        by_link: links to these are good for it.

    Raises:
        NotAllowed
    """
    if request[PRINCIPAL].role is Role.TICKET:
        if not by_ticket:
            raise NotAllowed("an upload ticket is for POST /upload, and for nothing else")
        return
    link = request[_LINK]
    what = f"job {link.job_id}"
    if link.shows is Shows.FILE:
        what = f"the file {link.path} of {what}"
    elif link.shows is Shows.RESULT:
        what = f"the result of {what}"
    path = request.match_info
    same_file = link.shows is not Shows.FILE or path.get("path") == link.path
    if link.shows not in by_link or path.get("id") != str(link.job_id) or not same_file:
        raise NotAllowed(f"this link shows {what}, and nothing else")
