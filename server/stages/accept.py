"""Upload → Queued: an upload that was answered with 201 is never lost.

Bytes before row: the bundle is sealed on disk before the job exists, so a crash leaves an orphan
file, never a job without its bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.domain.errors import BadField, KeyReused, QueueFull
from server.domain.jobs import Bundle, Job, NewJob
from server.domain.quotas import Service
from server.ports import Files, Jobs
from shared.clock import Clock
from shared.durations import parse_duration
from shared.files.sealed import Sealed
from shared.limits import FIELDS, lowered, parse_limit
from shared.wire import Limits

USER_ID: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_TAG: Final = re.compile(r"[^\s,\x00-\x1f\x7f]{1,64}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
QUEUED: Final = "Job successfully uploaded"


@dataclass(frozen=True, slots=True)
class Wish:
    """What an upload asks for, checked."""

    user_id: str
    service: Service
    timeout_s: float
    limits: Limits
    name: str | None
    tags: tuple[str, ...]
    idempotency_key: str | None
    warnings: tuple[str, ...] = ()


class Accept:
    """Checks what an upload asks for, and queues it."""

    def __init__(
        self, jobs: Jobs, files: Files, services: Mapping[str, Service], clock: Clock
    ) -> None:
        self._jobs, self._files, self._services, self._clock = jobs, files, services, clock

    def check_field(self, name: str, value: str) -> None:
        """Refuse a field as soon as it is known to be wrong.

        Raises:
            BadField
        """
        match name:
            case "user_id" if not USER_ID.fullmatch(value):
                raise BadField(
                    name,
                    "invalid_user_id",
                    "Invalid user_id, should be 1 to 64 characters of A-Z a-z 0-9 . _ @ -"
                    if value
                    else "Missing user_id field",
                )
            case "service" if value not in self._services:
                offered = ", ".join(sorted(self._services)) or "none"
                raise BadField(
                    name,
                    "unknown_service",
                    f"Invalid service {value[:64]!r}; this server has: {offered}"
                    if value
                    else "Missing service field",
                )
            case "timeout":
                try:
                    seconds = parse_duration(value)
                except ValueError as problem:
                    raise BadField(name, "invalid_timeout", f"Invalid timeout: {problem}") from None
                if not seconds:
                    raise BadField(name, "invalid_timeout", "Invalid timeout: it must be above 0")
            case _ if name in FIELDS:
                try:
                    parse_limit(name, value)
                except ValueError as problem:
                    raise BadField(name, f"invalid_{name}", f"Invalid {name}: {problem}") from None
            case "name" if len(value) > 200 or not value.isprintable():
                raise BadField(
                    name, "invalid_name", "Invalid name, should be up to 200 printable characters"
                )
            case "tags":
                tags = _tags(value)
                if len(tags) > 16 or not all(_TAG.fullmatch(tag) for tag in tags):
                    raise BadField(
                        name,
                        "invalid_tags",
                        "Invalid tags, should be up to 16 words of up to 64 characters, "
                        "separated by commas",
                    )
            case "idempotency_key" if not _KEY.fullmatch(value):
                raise BadField(
                    name,
                    "invalid_idempotency_key",
                    "Invalid Idempotency-Key, should be 1 to 255 visible ASCII characters",
                )

    def wish(self, fields: Mapping[str, str]) -> Wish:
        """What a complete form asks for.

        Raises:
            BadField: the first field that is missing or wrong.
        """
        for needed in ("user_id", "service"):
            if not fields.get(needed):
                raise BadField(needed, f"missing_{needed}", f"Missing {needed} field")
        for name, value in fields.items():
            self.check_field(name, value)
        service = self._services[fields["service"]]
        timeout_s = service.timeout_s
        if "timeout" in fields:
            # Lowered, never raised: the service's own limit is the operator's word.
            timeout_s = min(timeout_s, parse_duration(fields["timeout"]))
        return Wish(
            fields["user_id"],
            service,
            timeout_s,
            lowered(service.limits, fields),
            fields.get("name") or None,
            _tags(fields.get("tags", "")),
            fields.get("idempotency_key"),
        )

    async def check_room(self, wish: Wish) -> None:
        """Refuse early when the user has as many jobs waiting as the service allows; what counts is
        the count that the insert makes.

        Raises:
            QueueFull
        """
        most = wish.service.queued_per_user
        if not most:
            return
        if await self._jobs.queued(wish.service.name, wish.user_id, most) >= most:
            if wish.idempotency_key and await self._jobs.by_idempotency_key(
                wish.user_id, wish.idempotency_key
            ):
                return  # a repeat of an upload that is in already
            raise QueueFull(wish.user_id, wish.service.name, most)

    async def __call__(self, wish: Wish, staged: Path, bundle: Sealed) -> tuple[Job, bool]:
        """Queue the bundle that lies, whole and synced, at ``staged``.

        Returns:
            The job, and whether it is new (False: a repeat under the same Idempotency-Key).

        Raises:
            QueueFull, KeyReused, OSError
        """
        with self._files.sealing("bundles") as sealing:
            file = await sealing.seal(staged)
            job, fresh = await self._jobs.insert(
                NewJob(
                    wish.user_id,
                    wish.service.name,
                    Bundle(file, bundle.size, bundle.digest),
                    wish.limits,
                    wish.timeout_s,
                    self._clock.now(),
                    wish.name,
                    wish.tags,
                    wish.idempotency_key,
                    (*wish.warnings, *bundle.warnings),
                ),
                QUEUED,
                wish.service.queued_per_user,
            )
            if fresh:
                sealing.keep()
            elif (
                job.bundle and job.bundle.digest != bundle.digest
            ) or job.service != wish.service.name:
                raise KeyReused(job.id)
        return job, fresh


def _tags(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))
