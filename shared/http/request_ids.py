"""The id of a request: in its answer, whoever gives it, and in each log line about it."""

from __future__ import annotations

import secrets
from typing import Final

from aiohttp import web

REQUEST_ID: Final = web.RequestKey("request_id", str)
ID_HEADER: Final = "X-Request-ID"


def new_request_id() -> str:
    return secrets.token_hex(8)
