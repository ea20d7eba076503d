"""Authentication: the one place that gives every request its principal."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from aiohttp import web

from shared.principals import ANONYMOUS, LOCAL, Principal, Role

PRINCIPAL: Final = web.RequestKey("principal", Principal)


class Tokens:
    """``Authorization: Bearer …`` against the tokens that are known.

    Args:
        principals: token -> whose it is; none: everybody is LOCAL.
    """

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._digests = [
            (hashlib.sha256(token.encode()).digest(), principal)
            for token, principal in principals.items()
        ]

    def principal(self, request: web.BaseRequest) -> Principal:
        """The principal of the token in the request, found in constant time.

        LOCAL for everybody where no token is set; ANONYMOUS without a valid token.
        """
        if not self._digests:
            return LOCAL
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        matching = ANONYMOUS
        for known, principal in self._digests:
            if hmac.compare_digest(digest, known):
                matching = principal
        return matching if scheme.lower() == "bearer" else ANONYMOUS


def operators(tokens: Iterable[str]) -> Tokens:
    """The tokens of the settings: ``token-1`` is the first of them. Each may do everything."""
    return Tokens(
        {
            token: Principal(f"token-{number}", Role.OPERATOR)
            for number, token in enumerate(tokens, 1)
        }
    )
