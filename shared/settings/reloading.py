"""Settings of both programs that a reload cannot change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SAME_FILE: Final = "another file; the content of this one is read again"
LISTENER: Final[Mapping[str, str]] = {
    "host": "it listens already",
    "port": "it listens already",
    "tls_cert": _SAME_FILE,
    "tls_key": _SAME_FILE,
    "tls_client_ca": _SAME_FILE,
}
"""Keys that wait for a restart, and why."""
