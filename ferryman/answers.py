"""Answers that only the client gives a shape; the others are in ``shared.wire``."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server has the bundle, safely; the job waits its turn."""

    id: int
    status: str
    message: str
    idempotency_key: str
    """Sending the same bundle under this key again gives the same job."""


class Health(BaseModel):
    """``GET /health``; further fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    status: str
    database: str = ""
    message: str = ""
