"""Tokens, which operators make; who the caller is; and who did what."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final
from urllib.parse import quote

from ferryman.calls import Calls
from ferryman.token_models import (
    AuditDoc,
    AuditPage,
    NewTokenDoc,
    RoleName,
    ScopeName,
    TokenDoc,
    TokenPage,
    WhoAmI,
)

_PAGE: Final = 500


class TokenCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    async def whoami(self) -> WhoAmI:
        """Whose requests these are, and what they may do.

        Raises:
            NotAllowed: the token is not good; the text says why.
        """
        return await self._transport.get("api/v1/whoami", WhoAmI)

    async def create_token(
        self,
        name: str,
        role: RoleName = "user",
        *,
        user: str | None = None,
        users: Iterable[str] = (),
        scopes: Iterable[ScopeName] | None = None,
        expires_in: float | str | None = None,
    ) -> NewTokenDoc:
        """Make a token; for operators, as are the others. It is not repeated after a lost answer:
        look with :meth:`tokens` whether it was made, and revoke it.

        Args:
            name: of the principal; tokens with the same name are one principal's.
            user: of a ``"user"``: whose jobs it sees and makes; None: ``name``.
            users: of a ``"portal"``: patterns of the users for whom it may act; empty: any.
            scopes: None: all of its role's.
            expires_in: seconds, or text such as ``"90d"``; None: it does not expire.

        Returns:
            The token; its text is in ``token``, and nowhere else.

        Raises:
            Conflict: the name is another principal's.
            Refused: something is not as it should be; the text says what.
        """
        body = {
            "name": name,
            "role": role,
            "user_id": user,
            "users": list(users),
            "scopes": None if scopes is None else list(scopes),
            "expires_in": expires_in,
        }
        return await self._new_token("api/v1/tokens", body)

    async def tokens(
        self, *, name: str | None = None, role: RoleName | None = None, ended: bool = False
    ) -> AsyncGenerator[TokenDoc, None]:
        """Tokens, newest first, without their secrets.

        Args:
            ended: those, too, that were revoked or have expired.
        """
        query = {"ended": "1"} if ended else {}
        query |= {key: one for key, one in (("name", name), ("role", role)) if one is not None}
        while True:
            page = await self._transport.get("api/v1/tokens", TokenPage, query=query)
            for token in page.items:
                yield token
            if page.next is None:
                return
            query["cursor"] = page.next

    async def revoke_token(self, token_id: str) -> TokenDoc:
        """Have it refused from now on. Raises NotFound."""

        async def once() -> TokenDoc:
            async with self._transport.answer("DELETE", _path(token_id)) as answer:
                return await self._transport.read(answer, TokenDoc)

        return await self._transport.retry(once)

    async def rotate_token(
        self,
        token_id: str,
        *,
        overlap: float | str = 0,
        expires_in: float | str | None = None,
    ) -> NewTokenDoc:
        """Give it another secret; not repeated after a lost answer, in which the secret is lost.

        Args:
            overlap: for so long the former secret is good, too: seconds, or text such as ``"1h"``.
            expires_in: from now; None: it ends when it would have.

        Returns:
            As :meth:`create_token`

        Raises:
            Conflict: it was revoked or has expired.
            NotFound
        """
        body = {"overlap": overlap, "expires_in": expires_in}
        return await self._new_token(f"{_path(token_id)}/rotate", body)

    async def audit(
        self,
        *,
        principal: str | None = None,
        user: str | None = None,
        token: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[AuditDoc, None]:
        """The audit trail, newest first: requests that changed something, or were to.

        Args:
            principal: only what the principal of this name did.
            user: only what a portal did for this user.
            token: only what was done with the token of this id.
            action: only actions whose text has this in it, such as ``"cancel"``.
            target: only what was done to this, such as the number of a job.
            since, until: a time with its offset from UTC, or how long ago, such as ``"2h"``.
            limit: at most so many; None: all.
        """
        chosen = {
            "principal": principal,
            "user": user,
            "token": token,
            "action": action,
            "target": target,
            "since": since,
            "until": until,
        }
        query = {key: text for key, text in chosen.items() if text is not None}
        left = limit
        while left is None or left > 0:
            query["limit"] = str(_PAGE if left is None else min(_PAGE, left))
            page = await self._transport.get("api/v1/audit", AuditPage, query=query)
            for entry in page.items:
                yield entry
            if page.next is None:
                return
            query["cursor"] = page.next
            left = None if left is None else left - len(page.items)

    async def _new_token(self, path: str, body: dict[str, Any]) -> NewTokenDoc:
        given = {key: one for key, one in body.items() if one is not None}
        async with self._transport.answer("POST", path, json=given) as answer:
            return await self._transport.read(answer, NewTokenDoc)


def _path(token_id: str) -> str:
    return f"api/v1/tokens/{quote(token_id, safe='')}"
