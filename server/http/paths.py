"""Paths of which several routes are made."""

from __future__ import annotations

from typing import Final

JOB: Final = "/api/v1/jobs/{id}"
JOB_PAGE: Final = "/jobs/{id}"
AGENT: Final = "/api/v1/agents/{name}"
SERVICES: Final = "/api/v1/services"
TOKENS: Final = "/api/v1/tokens"
TOKEN: Final = f"{TOKENS}/{{token}}"
SERVICE: Final = f"{SERVICES}/{{name}}"
LOGIN_ONCE: Final = "/login/once"
"""Page of a link that logs in."""
TOKENS_PAGE: Final = "/tokens"
TOKEN_PAGE: Final = f"{TOKENS_PAGE}/{{token}}"
