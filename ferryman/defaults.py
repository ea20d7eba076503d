"""Defaults of the client and the command line, and the variables that the command line reads."""

from __future__ import annotations

from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:5000"
VARIABLES: Final = frozenset(
    f"FERRYMAN_{name}"
    for name in (
        *("URL", "TOKEN", "USER", "SERVICE"),
        *("CA_FILE", "CLIENT_CERT", "CLIENT_KEY"),
        "CONFIG",
    )
)
"""All variables of the command line. Server and agent leave them alone: they are no settings."""
