"""What the settings say about webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator

from server.domain.webhook_targets import ServiceWebhook, webhook_target
from server.domain.webhooks import ENDS, secret_bytes
from shared.settings.base import File, Section
from shared.settings.effective import HOST_ONLY
from shared.wire import WebhookEvent


class WebhookTable(Section):
    """Table ``[services.NAME.webhook]``."""

    url: Annotated[str, HOST_ONLY]
    """May hold a secret itself, so it is shown to operators only, and the log has its host only."""
    events: tuple[WebhookEvent, ...] = Field(tuple(sorted(ENDS)), min_length=1)
    secret: SecretStr | None = None
    """``whsec_…``; neither this nor a file: one is made from the server's."""
    secret_file: File = None

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        webhook_target(value)
        return value

    @model_validator(mode="after")
    def _secret_is_good(self) -> WebhookTable:
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("give secret or secret_file, not both")
        self.webhook()
        return self

    def webhook(self) -> ServiceWebhook:
        secret = None if self.secret is None else self.secret.get_secret_value()
        if self.secret_file is not None:
            secret = _lines(self.secret_file)[0]
        if secret is not None:
            secret_bytes(secret)
        return ServiceWebhook(self.url, frozenset(self.events), secret)


def webhook_secrets(file: Path | None) -> list[bytes]:
    """The secrets of a file; none where there is no file.

    Raises:
        ValueError: it cannot be read, or holds something else.
    """
    return [] if file is None else [secret_bytes(line) for line in _lines(file)]


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise ValueError(f"file {file}: {why}") from None
    if not lines:
        raise ValueError(f"file {file}: there is no secret in it")
    return lines
