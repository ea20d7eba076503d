"""Tokens, which operators make; and who the caller is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any
from urllib.parse import quote

from ferryman.answer_errors import conflict_as
from ferryman.calls import Calls
from ferryman.errors import Conflict
from ferryman.token_models import NewTokenDoc, RoleName, ScopeName, TokenDoc, TokenPage, WhoAmI


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
        self, *, name: str | None = None, role: RoleName | None = None, every: bool = False
    ) -> AsyncGenerator[TokenDoc, None]:
        """Tokens, newest first, without their secrets.

        Args:
            every: those, too, that were revoked or have expired.
        """
        query = {"all": "1"} if every else {}
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

    async def _new_token(self, path: str, body: dict[str, Any]) -> NewTokenDoc:
        given = {key: one for key, one in body.items() if one is not None}
        with conflict_as(Conflict):
            async with self._transport.answer("POST", path, json=given) as answer:
                return await self._transport.read(answer, NewTokenDoc)


def _path(token_id: str) -> str:
    return f"api/v1/tokens/{quote(token_id, safe='')}"
