"""The options of a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from ferryman.clock import Clock
from ferryman.connection import AnyPath


class ClientOptions(TypedDict, total=False):
    """How a client reaches its server, and for whom it asks. All may be left out."""

    token: str | None
    """Where the server asks for one."""
    user: str | None
    """Whose jobs are submitted, unless ``submit`` says otherwise. Not needed with the token of a
    user, nor with ``act_as``."""
    act_as: str | None
    """The user for whom a portal asks: the client sees and changes only what is that user's."""
    timeout: float
    """Seconds without a byte after which a connection counts as broken; 60."""
    retry_for: float
    """Seconds to keep trying while the server cannot be reached; 15. Trying again never makes a
    second job."""
    headers: Mapping[str, str] | None
    """Sent with every request, for what stands before the server."""
    proxy: str | None
    """URL of an HTTP proxy; None: that of the environment."""
    trust_env: bool
    """Take the proxy from ``HTTPS_PROXY`` and the like; never for this machine itself. True."""
    ca_file: AnyPath | None
    """Certificates (PEM) to trust in place of the system's."""
    client_cert: AnyPath | None
    """Certificate (PEM) that shows who the client is; its key is in the same file, or in"""
    client_key: AnyPath | None
    """(PEM, without a password)."""
    clock: Clock
    """For tests."""
