"""The id of a request, and its refusal before a handler sees it, in both programs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from aiohttp import web

REQUEST_ID: Final = web.RequestKey("request_id", str)
ID_HEADER: Final = "X-Request-ID"


def new_request_id() -> str:
    return secrets.token_hex(8)


class Denied(Exception):
    """A request is refused; each program gives the answer its own shape.

    Attributes:
        code: for programs; ``message`` is for people.
        headers: go with the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})
