"""For people without a token: upload tickets and signed links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from ferryman.browser_models import LinkDoc, LoginLinkDoc, TicketDoc
from ferryman.calls import Calls

Shown: TypeAlias = Literal["job", "result", "file"]


class BrowserCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    async def create_ticket(
        self,
        user: str | None = None,
        *,
        service: str | None = None,
        expires_in: float | str | None = None,
        max_bytes: int | str | None = None,
        fields: Mapping[str, str] | None = None,
        return_to: str | None = None,
    ) -> TicketDoc:
        """Make an upload ticket; for portals and operators. Whoever has its ``upload_url`` may
        upload once, without a token.

        Args:
            user: whose job it becomes; None: the client's user.
            service: None: the form says which.
            expires_in: seconds, or text such as ``"15m"``; at most a day.
            max_bytes: of the upload: a number, or text such as ``"100MB"``.
            fields: further fields of the form, which it then cannot change.
            return_to: page that a plain form is sent on to.

        Raises:
            BadArgument: there is no user.
            NotAllowed: the token is not a portal's, or not for this user.
            Refused: something is not as it should be; the text says what.
        """
        body = {
            "user_id": self._user_of(user),
            "service": service,
            "expires_in": expires_in,
            "max_bytes": max_bytes,
            "fields": None if fields is None else dict(fields),
            "return_to": return_to,
        }
        return (await self._transport.post("api/v1/tickets", TicketDoc, json=_given(body)))[1]

    async def create_link(
        self,
        job_id: int,
        what: Shown = "job",
        *,
        path: str | None = None,
        expires_in: float | str | None = None,
    ) -> LinkDoc:
        """Make a signed link. Whoever has its ``url`` may read what it shows, without a token.

        Args:
            what: ``"job"`` is all of it, page and result included.
            path: of the file, with ``"file"``.
            expires_in: seconds, or text such as ``"7d"``; at most 30 days.

        Raises:
            NotFound
            Refused: something is not as it should be; the text says what.
        """
        body = _given({"what": what, "path": path, "expires_in": expires_in})
        return (await self._transport.post(f"api/v1/jobs/{job_id}/links", LinkDoc, json=body))[1]

    async def login_link(self) -> LoginLinkDoc:
        """Make a link to the dashboard. Whoever opens its ``url`` within a minute is logged in as
        the client is, once; where no login is needed, it is the dashboard's address.
        """
        return (await self._transport.post("api/v1/login-links", LoginLinkDoc))[1]


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in body.items() if one is not None}
