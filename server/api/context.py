"""What the handlers work with; the composition root puts one into the application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from server.domain.quotas import Service
from server.ports import Files, Fleet, Jobs, Watch
from server.stages.accept import Accept
from server.stages.cancel import Cancel
from shared.clock import Clock
from shared.multipart import FormLimits


@dataclass(frozen=True, slots=True)
class Context:
    jobs: Jobs
    files: Files
    fleet: Fleet
    services: Mapping[str, Service]
    watch: Watch
    clock: Clock
    accept: Accept
    cancel: Cancel
    form_limits: FormLimits
    min_free: int
    """Bytes of disk that uploads must leave."""
    cancel_patience_s: float
    troubles: Callable[[], list[str]]
    """What is wrong now, in sentences; empty: all is well."""
    version: str


CONTEXT: Final = web.AppKey("context", Context)
