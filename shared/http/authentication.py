"""Authentication: the one place that gives every request its principal."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request.

    Attributes:
        name: for logs and limits; ``token-1`` is the first token of the settings.
        known: may do everything; else only what needs no token.
    """

    name: str
    known: bool


ANONYMOUS: Final = Principal("anonymous", known=False)
LOCAL: Final = Principal("local", known=True)
"""Whoever calls a program without tokens, which listens on loopback only."""
PRINCIPAL: Final = web.RequestKey("principal", Principal)


class Tokens:
    """``Authorization: Bearer …`` against the tokens of the settings."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [
            (hashlib.sha256(token.encode()).digest(), Principal(f"token-{number}", known=True))
            for number, token in enumerate(tokens, 1)
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
