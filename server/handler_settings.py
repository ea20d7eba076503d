"""What the handlers of requests get of the settings."""

from __future__ import annotations

from server.http.context import Configured
from server.settings.tables import ServerTable
from shared.multipart.limits import FormLimits


def configured(table: ServerTable, *, token_needed: bool) -> Configured:
    """What handlers read of the settings."""
    return Configured(
        form_limits=FormLimits(
            max_bytes=table.max_upload,
            max_files=table.max_files,
            portable=table.names == "portable",
        ),
        cancel_patience_s=table.cancel_patience,
        token_needed=token_needed,
        public_url=table.public_url,
        return_origins=table.return_origins(),
    )
