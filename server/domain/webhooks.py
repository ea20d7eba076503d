"""Webhooks: which ends are announced, to which machines, signed how, and when a delivery is tried
again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from server.domain.jobs import Job, Move
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
REPLACED_S: Final = 86_400
"""For so long a secret signs beside the one that has replaced it."""
_MAX_URL: Final = 2_000
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")
_NUMBER: Final = re.compile(r"(^|\.)(0x[0-9a-f]*|[0-9]+)$")
"""A last part as no name has it."""
_V4_INSIDE: Final = (
    (IPv6Network("::/96"), 0),  # IPv4-compatible
    (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (IPv6Network("::ffff:0:0:0/96"), 0),  # IPv4-translated
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)
"""Networks whose addresses lead to an IPv4 address, and the bit where that ends, from the right."""
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_NOT_ROUTED: Final = (
    # What older releases of Python take for global.
    IPv6Network("2001::/23"),  # protocol assignments, Teredo among them
    IPv6Network("3fff::/20"),  # documentation
    IPv4Network("192.0.0.0/24"),  # protocol assignments
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The machine that an address names."""

    host: str
    """A name in lower case, or an IP address without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """Where the host is an IP address."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None


def webhook_target(url: str) -> WebhookTarget:
    """The machine that the address of a webhook names. Raises ValueError: it is no such address."""
    such_as = "an address such as https://portal.example.org/hooks/ferryman"
    shown = repr(url[:64])
    if len(url) > _MAX_URL:
        raise ValueError(f"it is longer than {_MAX_URL} characters")
    if not re.fullmatch(r"[\x21-\x7e]*", url) or "\\" in url:
        raise ValueError(f"{shown} has characters that no address has; write {such_as}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise ValueError(f"{shown} is no address ({problem}); write {such_as}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{shown} is not an http:// or https:// address; write {such_as}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a user name or password; webhooks are authenticated by signature")
    if parts.fragment:
        raise ValueError("it has a fragment (#…), which no server gets to see")
    if port == 0:
        raise ValueError("it has port 0; give 1 to 65535")
    if "[" in parts.netloc and ":" not in parts.hostname:
        raise ValueError(f"{shown} has no IPv6 address in its brackets; write {such_as}")
    target = WebhookTarget(parts.hostname.lower().rstrip("."), port or _PORTS[parts.scheme])
    if "%" in target.host or (
        target.address is None
        and (not _HOST.fullmatch(parts.hostname) or _NUMBER.search(target.host))
    ):
        # Among others 127.1, 0x7f000001 and 2130706433, which some resolvers take for 127.0.0.1.
        raise ValueError(f"{parts.hostname[:64]!r} is neither a host name nor an IP address")
    return target


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


def announced(job: Job, move: Move) -> dict[str, Any] | None:
    """The delivery of what a move has to announce of a job, as it is after it: its fields. Children
    of a batch are not announced: their parent is. Who uploaded the job is its principal, whose
    secret signs.
    """
    event = _EVENT_OF.get(move.to)
    if event is None or job.parent_id is not None:
        return None
    if job.callback_url is None or job.submitted_by is None:
        return None
    body = WebhookBody(
        type=event,
        timestamp=utc(move.at),
        data=WebhookJob(
            id=job.id,
            status=move.to,
            message=move.message,
            user_id=job.user_id,
            service=job.service,
            name=job.name,
            tags=list(job.tags),
            meta=None if job.meta is None else json.loads(job.meta),
            attempt=job.attempt,
            run=job.run,
            reason=move.reason,
            exit_code=job.exit_code,
            created_at=utc(job.created_at),
            started_at=None if job.started_at is None else utc(job.started_at),
            ended_at=None if job.ended_at is None else utc(job.ended_at),
        ),
    ).model_dump_json()
    return {
        "job_id": job.id,
        "user_id": job.user_id,
        "principal": job.submitted_by,
        "url": job.callback_url,
        "target": str(webhook_target(job.callback_url)),
        "event": event,
        "body": body,
        "created_at": move.at,
        "next_at": move.at,
    }


def next_try_s(last: Try, uniform: Callable[[float, float], float]) -> float | None:
    """Seconds until a delivery is tried again that was not delivered; None: never."""
    if last.is_final or last.number > len(_DELAYS_S):
        return None
    delay = _DELAYS_S[last.number - 1] * uniform(1 - _SPREAD, 1 + _SPREAD)
    return min(max(delay, last.retry_after_s or 0), _LONGEST_DELAY_S)


def secret_text(key: bytes) -> str:
    """As receivers are given it: ``whsec_…``."""
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


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the Internet: not private, loopback, link-local, multicast,
    reserved, and not a detour to such an address.
    """
    if any(address in network for network in _NOT_ROUTED if network.version == address.version):
        return False
    if isinstance(address, IPv6Address):
        for network, shift in _V4_INSIDE:
            if address in network:
                return is_public(IPv4Address(int(address) >> shift & 0xFFFFFFFF))
        if address not in _GLOBAL_V6:
            return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


class AllowedTargets:
    """Which machines webhooks may be sent to, apart from those of the Internet. ``words``: networks
    (``10.0.0.0/8``), addresses, host names, and ``name:port``. Raises ValueError: one is none of
    these.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._hosts: set[tuple[str, int | None]] = set()
        for word in words:
            try:
                self._networks.append(ip_network(word))
            except ValueError:
                name, _, port = word.partition(":")
                numbered = not port or (port.isdecimal() and 0 < int(port) < 65_536)
                if "/" in word or not _HOST.fullmatch(name) or not numbered:
                    raise ValueError(
                        f"{word!r} is neither a network such as 10.0.0.0/8 nor a host such as "
                        "hooks.internal or hooks.internal:8443"
                    ) from None
                self._hosts.add((name.lower(), int(port) if port else None))

    def refusal(
        self, target: WebhookTarget, address: IPv4Address | IPv6Address | None
    ) -> str | None:
        """Why nothing may be sent to an address of the target; None: it may. ``address``: to which
        the target's name leads; None: the target is one itself, or it is not known yet.
        """
        address = address or target.address
        if {(target.host, None), (target.host, target.port)} & self._hosts or address is None:
            return None
        inside = [address, getattr(address, "ipv4_mapped", None)]
        for one in inside:
            if one is not None and any(
                one in network for network in self._networks if network.version == one.version
            ):
                return None
        if is_public(address):
            return None
        # The address is not named: what names lead to inside is nobody's to ask here.
        what = "is" if target.address == address else "leads to what is"
        return (
            f"{target.host} {what} not a public address; an operator may allow it with "
            "webhook_allow in [server]"
        )
