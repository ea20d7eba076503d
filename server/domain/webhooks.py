"""Webhooks: which events are announced to whom, signed how, and when a delivery is tried again."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, get_args

from server.domain.errors import FerrymanError
from server.domain.jobs import Job, Move
from server.domain.webhook_targets import ServiceWebhook, WebhookTarget, webhook_target
from shared.clock import SECOND, Micros, utc
from shared.wire import DeliveryState, JobState, WebhookBody, WebhookEvent, WebhookJob

EVENTS: Final[tuple[WebhookEvent, ...]] = get_args(WebhookEvent)
ENDS: Final[frozenset[WebhookEvent]] = frozenset(EVENTS) - {"job.running"}
"""What a job's own address gets, and a service's unless it names others."""
_EVENT_OF: Final[Mapping[JobState, WebhookEvent]] = {
    JobState.RUNNING: "job.running",
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


class NoSuchDelivery(FerrymanError):
    code = "delivery_not_found"

    def __init__(self, number: int) -> None:
        super().__init__(f"there is no webhook delivery {number}")


class SignerKind(StrEnum):
    """Whose secret signs a webhook."""

    PRINCIPAL = "principal"
    """The job's own address: the secret of whoever uploaded the job."""
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Signer:
    kind: SignerKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """What is to be delivered."""

    signer: Signer
    url: str
    event: WebhookEvent
    body: str
    at: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A row of the store."""

    id: int
    job_id: int
    signer: Signer
    service: str
    url: str
    event: WebhookEvent
    body: str
    state: DeliveryState
    message: str
    tries: int
    """How often it was begun to be sent."""
    tries_before: int
    """How many of them were made before somebody asked for it to be sent again."""
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


def deliveries_of(job: Job, move: Move, service: ServiceWebhook | None) -> list[NewDelivery]:
    """What a move of a job has to announce.

    Children of a batch are not announced: their parent is.

    Args:
        job: after the move.
        service: the webhook of its service.
    """
    if job.parent_id is not None:
        return []
    receivers = []
    if job.callback_url is not None and job.submitted_by is not None:
        own = Signer(SignerKind.PRINCIPAL, job.submitted_by)
        receivers.append((own, job.callback_url, ENDS))
    if service is not None:
        receivers.append((Signer(SignerKind.SERVICE, job.service), service.url, service.events))
    found: list[NewDelivery] = []
    before, steps = move.before, move.steps
    for step in steps if receivers else ():
        event = _EVENT_OF.get(step.to)
        is_back = before is JobState.UNKNOWN and step.to is JobState.RUNNING
        before = step.to
        if event is None or is_back:
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
        found += [
            NewDelivery(signer, url, event, body, step.at)
            for signer, url, events in receivers
            if event in events
        ]
    return found


def next_try_s(
    delivery: Delivery, last: Try, uniform: Callable[[float, float], float]
) -> float | None:
    """Seconds until a delivery is tried again that was not delivered; None: never."""
    made = last.number - delivery.tries_before
    if last.is_final or made > len(_DELAYS_S):
        return None
    delay = _DELAYS_S[made - 1] * uniform(1 - _SPREAD, 1 + _SPREAD)
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


@dataclass(frozen=True, slots=True)
class WebhookSecrets:
    """The secrets of all signers, made from the server's.

    No receiver can forge what another gets: each has a secret of its own.
    """

    server: Sequence[bytes]
    """The first one is in use; webhooks are signed with those of the others, too."""

    def of(self, signer: Signer, own: str | None = None) -> list[bytes]:
        """The secrets that sign for a receiver, as bytes.

        Args:
            own: the secret that the settings give it.
        """
        if own is not None:
            return [secret_bytes(own)]
        return [hmac.digest(key, f"webhooks of {signer}".encode(), "sha256") for key in self.server]


def signature(secrets: Sequence[bytes], webhook_id: str, sent_at_s: int, body: bytes) -> str:
    """The header ``webhook-signature`` of Standard Webhooks, version 1."""
    text = f"{webhook_id}.{sent_at_s}.".encode() + body
    digests = [hmac.digest(key, text, hashlib.sha256) for key in secrets]
    return " ".join(f"v1,{base64.b64encode(one).decode()}" for one in digests)


def sent_at_s(now: Micros) -> int:
    return now // SECOND
