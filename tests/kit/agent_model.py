"""A model of an agent: what it promises a server, in memory. ``sim_agent`` calls it directly,
``fake_agent`` over HTTP; ``tests/fleet/test_conformance.py`` holds it to the real one.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shared.clock import SECOND, Micros, iso
from shared.ids import AttemptKey, Start
from shared.wire import LiveDoc, PayloadDoc, PayloadState, Reason, ResultInfo, RetryLater

ALIVE = frozenset({PayloadState.PREPARED, PayloadState.RUNNING})
FANS_OUT = "fan-out"
"""The digest of a bundle that leaves children begins so."""
LONG_AGO: Micros = 1_700_000_000 * SECOND


class No(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


@dataclass
class Payload:
    """What an agent holds for one attempt.

    Attributes:
        key: an ``AttemptKey``, or its text.
        more: of its document, in place of what is here.
        logs: what it has written so far.
        changed: number of its last change.
        inputs: lines of the list that its result ends with.
    """

    id: int
    server: str
    key: Any
    digest: str | None
    status: PayloadState | str = PayloadState.RUNNING
    result: bytes = b""
    inputs: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    started: bool | None = None
    reason: Reason | None = None
    interrupted: bool = False
    live: LiveDoc | None = None
    created: Micros | None = None
    exit_code: int = 3
    retry_later: RetryLater | None = None
    changed: int = 0

    @property
    def alive(self) -> bool:
        return self.status in ALIVE

    def result_info(self) -> ResultInfo | None:
        if self.alive or not self.result or self.status == PayloadState.CLEANED:
            return None
        digest = hashlib.sha256(self.result).hexdigest()
        children = 2 if (self.digest or "").startswith(FANS_OUT) else 0
        size, inputs = len(self.result), self.inputs
        return ResultInfo(size=size, sha256=digest, children=children, inputs=inputs)

    def doc(self, now: Micros = LONG_AGO) -> PayloadDoc:
        started = self.status != PayloadState.PREPARED if self.started is None else self.started
        return PayloadDoc(
            id=self.id,
            status=PayloadState(self.status),
            server=self.server,
            key=None if self.key is None else str(self.key),
            bundle_digest=self.digest,
            reason=self.reason,
            message="simulated",
            exit_code=self.exit_code if self.reason is Reason.EXIT_CODE else None,
            interrupted=self.interrupted,
            killed=self.status == PayloadState.KILLED,
            live=self.live,
            retry_later=self.retry_later,
            result=self.result_info(),
            created_at=None if self.created is None else iso(self.created),
            started_at=iso(now) if started else None,
        )

    def wire(self) -> dict[str, Any]:
        """Its document in JSON, and what it says instead."""
        ended = {} if self.alive else {"ended_at": iso(LONG_AGO)}
        return self.doc().model_dump(mode="json") | ended | self.more


@dataclass
class AgentModel:
    """Durable, idempotent by key; a key that was settled, and an attempt older than one that it
    knows, never starts.

    Attributes:
        settled: server and key of what it refuses for good.
        bundles: server and digest -> content of those that it keeps.
        starts: server -> the latest start that it has seen.
        listeners: hear of each change.
    """

    payloads: dict[int, Payload] = field(default_factory=dict)
    settled: set[tuple[str, str]] = field(default_factory=set)
    bundles: dict[tuple[str, str], Any] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    seq: int = 0
    listeners: list[Callable[[Payload], None]] = field(default_factory=list)

    # -- what a server asks for

    def check_start(self, server: str, start: Start) -> None:
        seen = self.starts.get(server, start)
        if start.number < seen.number or (start.number == seen.number and start != seen):
            raise No(409, "stale_start")
        self.starts[server] = start

    def find(self, server: str, key: Any) -> Payload | None:
        held = self.payloads.values()
        wanted = (server, str(key))
        return next((one for one in held if (one.server, str(one.key)) == wanted), None)

    def take(self, server: str, key: Any, digest: str | None) -> Payload:
        """The payload of an order: one that is there, or a new one. Raises No."""
        known = self.find(server, key)
        if known is not None:
            if known.digest != digest:
                raise No(409, "digest_mismatch")
            return known
        if (server, str(key)) in self.settled:
            raise No(409, "key_refused")
        job_id, attempt = AttemptKey.parse(str(key))
        taken = {(one.server, str(one.key)) for one in self.payloads.values()}
        known_keys = (AttemptKey.parse(one) for of, one in taken | self.settled if of == server)
        if any(one.job_id == job_id and one.attempt > attempt for one in known_keys):
            raise No(409, "stale_attempt")
        return self.add(Payload(next(self.ids), server, key, digest, PayloadState.PREPARED))

    def settle(self, server: str, key: Any, *, kill: bool = False) -> Payload | None:
        """The payload under the key; None: there will be none."""
        known = self.find(server, key)
        if known is None:
            self.settled.add((server, str(key)))
        elif kill:
            self.stop(known)
        return known

    def known(self, payload_id: int, key: Any = None) -> Payload:
        """Raises No if it has none of that number, or another key has it."""
        found = self.payloads.get(payload_id)
        if found is None or (key is not None and str(key) != str(found.key)):
            raise No(404, "payload_not_found")
        return found

    def stop(self, payload: Payload) -> None:
        if payload.alive:
            self.end(payload, PayloadState.KILLED)

    def forget(self, payload_id: int, key: Any = None) -> None:
        """It was acknowledged; what is not known is forgotten already. Raises No."""
        if payload_id not in self.payloads:
            return
        payload = self.known(payload_id, key)
        if payload.alive:
            raise No(409, "not_ended")
        payload.status = PayloadState.CLEANED  # tests may want to see its result all the same

    def held(self, server: str | None = None) -> list[Payload]:
        return [
            one
            for one in self.payloads.values()
            if server in (None, one.server) and one.status != PayloadState.CLEANED
        ]

    # -- what happens at it

    def add(self, payload: Payload) -> Payload:
        self.payloads[payload.id] = payload
        self.tell(payload)
        return payload

    def start(self, payload: Payload) -> None:
        payload.status, payload.started = PayloadState.RUNNING, True
        self.tell(payload)

    def end(self, payload: Payload, status: PayloadState | str) -> None:
        payload.status = status
        self.tell(payload)

    def tell(self, payload: Payload) -> None:
        self.seq += 1
        payload.changed = self.seq
        for listener in list(self.listeners):
            listener(payload)
