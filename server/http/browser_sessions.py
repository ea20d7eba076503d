"""Requests of browsers that have logged in: these show a cookie in place of a token."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aiohttp import hdrs, web

from server.stages.sessions import Sessions
from shared.http.request_log import peer_address
from shared.principals import Principal

SESSION: Final = "session"
_SAFE: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})


def cookie_name(server_id: str, name: str) -> str:
    """What a cookie of this server is called: those of several servers of one host must not meet.

    Args:
        server_id: of the database.
    """
    return f"ferryman_{server_id[:8]}_{name}"


class BrowserSessions:
    """Knows who asks by a session.

    A browser sends the cookie whoever makes it send the request, so it is good for what changes
    nothing, and for the forms of pages, whose router wants a proof that a page of ours sent them.

    Args:
        forms: method and path of every page.
    """

    def __init__(
        self, sessions: Sessions, server_id: str, forms: Collection[tuple[str, str]]
    ) -> None:
        self._sessions, self._forms = sessions, forms
        self._cookie = cookie_name(server_id, SESSION)

    def principal(self, request: web.Request) -> Principal | None:
        """None: it shows no session, or one that is not good, or not for this."""
        headers = request.headers
        if hdrs.COOKIE not in headers or hdrs.AUTHORIZATION in headers:
            return None
        if request.method not in _SAFE:
            resource = request.match_info.route.resource
            if resource is None or (request.method, resource.canonical) not in self._forms:
                return None
        text = request.cookies.get(self._cookie)
        return self._sessions.principal_of(text, peer_address(request)) if text else None
