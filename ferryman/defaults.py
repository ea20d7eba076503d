"""Defaults of the client and the command line."""

from __future__ import annotations

from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:5000"
