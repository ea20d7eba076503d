"""Authentication: the one place that gives every request its principal."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Final, Protocol

from aiohttp import web

from shared.http.settings import HttpSection
from shared.principals import ANONYMOUS, LOCAL, Principal, Role

PRINCIPAL: Final = web.RequestKey("principal", Principal)
CALLER: Final = ContextVar("caller", default="")
"""Whose share of what all callers use a request takes, see :func:`caller_of`."""


def caller_of(principal: Principal, address: str) -> str:
    """Strangers are told apart by address."""
    return principal.caller if principal.authenticated else f"stranger {address}"


class Issued(Protocol):
    """Tokens that were made while the program runs."""

    def principal_of(self, text: str, peer: str) -> Principal | None:
        """Whose token this is; without a role, and with the reason, if it is not good; None: it
        is none of these tokens.

        Args:
            peer: address that sent it.
        """
        ...


class Tokens:
    """``Authorization: Bearer …`` against the tokens that are known.

    Args:
        principals: token -> whose it is.
        issued: further tokens.
        needed: whether a request without a token is nobody's; otherwise it is LOCAL's. None: if
            there are principals.
    """

    def __init__(
        self,
        principals: Mapping[str, Principal],
        issued: Issued | None = None,
        *,
        needed: bool | None = None,
    ) -> None:
        self._issued = issued
        self.use(principals, needed=needed)

    def use(self, principals: Mapping[str, Principal], *, needed: bool | None = None) -> None:
        """Know these tokens from now on, and no others. The arguments are those of the class."""
        self._digests = [
            (hashlib.sha256(token.encode()).digest(), principal)
            for token, principal in principals.items()
        ]
        self.needed = bool(principals) if needed is None else needed

    def use_settings(self, settings: HttpSection) -> None:
        """Know the tokens of these settings from now on, and no others."""
        known = of_settings(settings.all_tokens(), settings.all_metrics_tokens())
        self.use(known, needed=settings.needs_token)

    def principal(self, request: web.BaseRequest, peer: str) -> Principal:
        """The principal of the token in the request, found in constant time.

        ANONYMOUS without a valid token, with the reason. Where none is needed, LOCAL for everybody
        but those who send an issued one.
        """
        header = request.headers.get("Authorization")
        scheme, _, given = (header or "").partition(" ")
        bearer, given = scheme.lower() == "bearer", given.strip()
        if not self.needed:
            return (self._issued_to(given, peer) if bearer else None) or LOCAL
        if header is None:
            return ANONYMOUS
        if not bearer:
            return replace(ANONYMOUS, why="the scheme is not Bearer")
        return self.principal_of(given, peer)

    def principal_of(self, token: str, peer: str) -> Principal:
        """Whose token this is, found in constant time; ANONYMOUS if it is not good, with the reason
        where there is more to say than that it is not known.
        """
        if found := self._issued_to(token, peer):
            return found
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        matching = ANONYMOUS
        for known, principal in self._digests:
            if hmac.compare_digest(digest, known):
                matching = principal
        return matching

    def digests(self) -> dict[str, Principal]:
        """SHA-256 of each known token that was not issued, in hexadecimal -> whose it is."""
        return {digest.hex(): principal for digest, principal in self._digests}

    def _issued_to(self, token: str, peer: str) -> Principal | None:
        return None if self._issued is None else self._issued.principal_of(token, peer)


def of_settings(tokens: Iterable[str], for_metrics: Iterable[str]) -> dict[str, Principal]:
    """The tokens of the settings: ``token-1`` is the first that may do everything, ``metrics-1``
    the first that may read metrics.
    """
    return {
        token: Principal(f"{name}-{number}", role)
        for name, role, some in (
            ("metrics", Role.METRICS, for_metrics),
            ("token", Role.OPERATOR, tokens),
        )
        for number, token in enumerate(some, 1)
    }


NONCE: Final = "Ferryman-Nonce"
PROOF: Final = "Ferryman-Proof"
_NONCE: Final = re.compile(r"[0-9a-f]{32}")


def new_nonce() -> str:
    """A text that was never sent before."""
    return secrets.token_hex(16)


def proof(secret: str, nonce: str, status: int) -> str:
    """The code of an answer."""
    text = f"ferryman-agent 1 {nonce} {status}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def check_proof(secret: str, nonce: str, status: int, given: str | None) -> None:
    """Refuse an answer without the right code. Raises ValueError."""
    if given is None:
        raise ValueError("it does not prove who it is: it has no identity_secret")
    right = proof(secret, nonce, status).encode()
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right):
        raise ValueError("its proof of who it is is wrong: it has another identity_secret")


def proving(secret: str) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """For ``on_response_prepare``: gives each answer its code."""

    async def prove(request: web.Request, response: web.StreamResponse) -> None:
        nonce = request.headers.get(NONCE, "")
        if _NONCE.fullmatch(nonce):
            response.headers[PROOF] = proof(secret, nonce, response.status)

    return prove
