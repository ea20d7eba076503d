"""Which settings can be changed while the server runs. A new key has to be in one of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server.settings.tables import ServerSettings

RESTART: Final[Mapping[str, str]] = {
    "host": "it listens already",
    "port": "it listens already",
    "tls_cert": "another file; the content of this one is read again",
    "tls_key": "another file; the content of this one is read again",
    "tls_client_ca": "another file; the content of this one is read again",
    "auth": "who may do everything must not change by a slip",
    "data_dir": "its files are open",
    "db_path": "it is open",
    "url_prefix": "links and cookies have it",
}
"""Keys of ``[server]`` that wait for a restart, and why."""
LIVE: Final = frozenset(
    {
        "tokens",
        "tokens_file",
        "allowed_hosts",
        "allowed_origins",
        "trusted_proxies",
        "max_connections",
        "connections_per_peer",
        "head_timeout",
        "keepalive_timeout",
        "send_timeout",
        "public_url",
        "return_to",
        "session_expires_after",
        "max_upload",
        "max_files",
        "names",
        "audit_expires_after",
        "min_free",
        "stored_per_user",
        "upload_per_user_per_day",
        "rate_limit",
        "schedules_per_user",
        "uploads",
        "uploads_per_user",
        "min_upload_rate",
        "upload_patience",
        "sender_interval",
        "getter_interval",
        "cleaner_interval",
        "agent_timeout",
        "agent_lost_after",
        "cancel_patience",
        "shutdown_grace",
        "webhook_allow",
        "webhook_secret_file",
        "webhooks_expire_after",
        "log_format",
        "log_level",
    }
)
"""Keys of ``[server]`` that a reload applies. So is all of the other tables."""


def waits(key: str) -> bool:
    """Whether a setting, such as ``server.port``, is applied by a restart only."""
    table, *more = key.split(".")
    return table == "server" and more[0] in RESTART


def with_old(new: ServerSettings, old: ServerSettings) -> ServerSettings:
    """The new settings, but for those that wait for a restart."""
    kept = {key: getattr(old.server, key) for key in RESTART}
    return new.model_copy(update={"server": new.server.model_copy(update=kept)})
