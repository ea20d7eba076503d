"""Proof that a form was sent by one of our pages: a token that only they hold.

The browser keeps a random text in a cookie; the token is made from it and a key of the server. A
page of another site can make a browser send the cookie, but it cannot read or make the token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

FIELD: Final = "csrf"
"""Of a form, or parameter of the query where the body is no plain form."""
HEADER: Final = "X-CSRF-Token"
_TEXT: Final = re.compile(r"[0-9a-f]{64}")
_HALF: Final = 32
"""Characters."""


class CsrfTokens:
    """Args:
    key: secret, of the server.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, browser: str) -> str:
        """For a form of a page.

        It is another text each time: what is compressed together with text from outside could be
        guessed from the length otherwise.

        Args:
            browser: what its cookie says.
        """
        mask = secrets.token_bytes(_HALF // 2)
        return mask.hex() + _xor(mask, self._secret(browser)).hex()

    def good(self, browser: str, token: str) -> bool:
        """Whether one of our pages in this browser has sent it."""
        if not browser or not _TEXT.fullmatch(token):
            return False
        mask, masked = bytes.fromhex(token[:_HALF]), bytes.fromhex(token[_HALF:])
        return hmac.compare_digest(_xor(mask, masked), self._secret(browser))

    def _secret(self, browser: str) -> bytes:
        text = f"csrf.{browser}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256)[: _HALF // 2]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
