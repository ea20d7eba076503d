"""How an agent proves to a server that it is the one that the server's operator means.

The server sends a random text with each request. The agent answers with a code that only somebody
can compute who has its secret, which is never sent. The code is of this one answer. It does not
protect what the answer says, or against somebody who passes everything on: TLS does.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

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
