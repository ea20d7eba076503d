"""Webhooks: which ends are announced, signed how, and when a delivery is tried again."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from server.domain.jobs import Job, Move
from server.domain.webhook_targets import WebhookTarget, webhook_target
from shared.clock import Micros, utc
from shared.wire import DeliveryState, JobState, WebhookBody, WebhookEvent, WebhookJob

EVENTS: Final[tuple[WebhookEvent, ...]] = get_args(WebhookEvent)
_EVENT_OF: Final[Mapping[JobState, WebhookEvent]] = {
    JobState.COMPLETED: "job.completed",
    JobState.FAILED: "job.failed",
    JobState.CANCELLED: "job.cancelled",
}
_DELAYS_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 21_600, 36_000)
"""Between two tries; they add up to almost a day."""
_LONGEST_DELAY_S: Final = 86_400
_SPREAD: Final = 0.1
_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = (24, 64)


REPLACED_S: Final = 86_400
"""For so long a secret signs beside the one that has replaced it."""


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """What is to be delivered.

    Attributes:
        principal: who uploaded the job; its secret signs.
    """

    principal: str
    url: str
    event: WebhookEvent
    body: str
    at: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A row of the store."""

    id: int
    job_id: int
    principal: str
    url: str
    event: WebhookEvent
    body: str
    state: DeliveryState
    message: str
    tries: int
    """How often it was begun to be sent."""
    tried: tuple[Try, ...] = ()
    """How the latest of them went, the first one first."""
    next_at: Micros | None
    created_at: Micros
    ended_at: Micros | None

    @property
    def target(self) -> WebhookTarget:
        return webhook_target(self.url)


@dataclass(frozen=True, slots=True)
class Try:
    """How one try went."""

    number: int
    at: Micros
    seconds: float
    status: int | None = None
    problem: str | None = None
    """None: it was delivered."""
    retry_after_s: float | None = None
    """As the answer asks for."""
    is_final: bool = False
    """Trying again is of no use."""


def deliveries_of(job: Job, move: Move) -> list[NewDelivery]:
    """What a move of a job has to announce.

    Children of a batch are not announced: their parent is.

    Args:
        job: after the move.
    """
    if job.parent_id is not None or job.callback_url is None or job.submitted_by is None:
        return []
    found: list[NewDelivery] = []
    steps = move.steps
    for step in steps:
        event = _EVENT_OF.get(step.to)
        if event is None:
            continue
        is_last = step is steps[-1]
        body = WebhookBody(
            type=event,
            timestamp=utc(step.at),
            data=WebhookJob(
                id=job.id,
                status=step.to,
                message=step.message,
                user_id=job.user_id,
                service=job.service,
                name=job.name,
                tags=list(job.tags),
                meta=None if job.meta is None else json.loads(job.meta),
                attempt=job.attempt,
                run=job.run,
                reason=step.reason,
                exit_code=job.exit_code if is_last else None,
                created_at=utc(job.created_at),
                started_at=None if job.started_at is None else utc(job.started_at),
                ended_at=utc(job.ended_at) if is_last and job.ended_at is not None else None,
            ),
        ).model_dump_json()
        found.append(NewDelivery(job.submitted_by, job.callback_url, event, body, step.at))
    return found


def next_try_s(last: Try, uniform: Callable[[float, float], float]) -> float | None:
    """Seconds until a delivery is tried again that was not delivered; None: never."""
    if last.is_final or last.number > len(_DELAYS_S):
        return None
    delay = _DELAYS_S[last.number - 1] * uniform(1 - _SPREAD, 1 + _SPREAD)
    return min(max(delay, last.retry_after_s or 0), _LONGEST_DELAY_S)


def secret_bytes(text: str) -> bytes:
    """What a secret as ``whsec_…`` stands for. Raises ValueError."""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    least, most = _SECRET_BYTES
    if not text.startswith(_PREFIX) or not least <= len(key) <= most:
        raise ValueError(f"a webhook secret is {_PREFIX} and base64 of {least} to {most} bytes")
    return key


def secret_text(key: bytes) -> str:
    """The reverse of :func:`secret_bytes`."""
    return _PREFIX + base64.b64encode(key).decode()


def secret_of(server: bytes, principal: str, number: int) -> bytes:
    """The secret that signs for what a principal uploads.

    No receiver can forge what another gets: each has a secret of its own.

    Args:
        server: the secret that all are made from.
        number: how often it was replaced.
    """
    whose = f"webhooks of principal {principal}" + (f" {number}" if number else "")
    return hmac.digest(server, whose.encode(), "sha256")


def signature(secrets: Sequence[bytes], webhook_id: str, sent_at_s: int, body: bytes) -> str:
    """The header ``webhook-signature`` of Standard Webhooks, version 1."""
    text = f"{webhook_id}.{sent_at_s}.".encode() + body
    digests = [hmac.digest(key, text, hashlib.sha256) for key in secrets]
    return " ".join(f"v1,{base64.b64encode(one).decode()}" for one in digests)
