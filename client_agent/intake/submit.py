"""Accepts an attempt: its bundle is stored first, then its row, once for each key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import structlog
from aiohttp import web

from client_agent.intake.admission import Admission
from client_agent.intake.many import ManyIntake
from client_agent.intake.orders import MAX_ORDER_BYTES
from client_agent.intake.submission import (
    MAX_BUNDLE,
    STALLED_S,
    Defaults,
    Submission,
    disk_problem,
    form_problem,
)
from client_agent.payloads.errors import SubmitInProgress
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared.clock import Clock, wait_for
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.reader import MAX_FILES
from shared.ids import AttemptKey, Start
from shared.multipart.parser import FormLimits, FormRefused
from shared.multipart.receive import receive

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_EARLY_LOOKUP_BYTES: Final = 1 << 18
"""In a body of at least this many bytes the key is looked up before the bundle is read."""


class _AlreadyAccepted(Exception):
    """The key has a payload already: the rest of the body need not be read."""

    def __init__(self, payload: Payload) -> None:
        super().__init__()
        self.payload = payload


class Intake:
    """``POST /submit``.

    Args:
        enqueue: hands a new payload to the runner.

    Attributes:
        many: what accepts several at once.
    """

    def __init__(
        self,
        payloads: Payloads,
        folders: Folders,
        bundles: SharedBundles,
        admission: Admission,
        enqueue: Callable[[Payload], None],
        *,
        defaults: Defaults,
        clock: Clock,
    ) -> None:
        self._payloads, self._folders, self._admission = payloads, folders, admission
        self._bundles = bundles
        self._enqueue, self._defaults, self._clock = enqueue, defaults, clock
        self._submissions: set[Submission] = set()
        self.many = ManyIntake(payloads, folders, bundles, admission, self.accepted)

    async def submit(self, request: web.Request, start: Start) -> Payload:
        """The payload of the request's key, new or not; the bundle of a new one is stored. Raises
        Refused, DigestMismatch, KeyRefused, StaleAttempt, StaleStart or DatabaseUnavailable."""
        await self._admission.check_ready(request.content_length or 0)
        limits = FormLimits(
            max_bytes=MAX_BUNDLE, max_files=MAX_FILES, max_field_bytes=MAX_ORDER_BYTES
        )
        submission = Submission(self._folders, self._admission, limits, start)
        self._submissions.add(submission)
        try:
            return await self._receive(request, submission)
        finally:
            self._submissions.discard(submission)
            submission.finished.set()

    async def wait_for_submission(self, server: str, key: AttemptKey) -> None:
        """Return when no submit of this key is being received, or when it has stalled. The key may
        then be refused for good. Raises SubmitInProgress if the submit goes on, or is being
        stored."""
        until = self._clock.monotonic() + STALLED_S
        while (left := until - self._clock.monotonic()) > 0:
            submission = next((one for one in self._submissions if one.has_key(server, key)), None)
            if submission is None:
                return
            await wait_for(submission.finished, left, self._clock)
        now = self._clock.monotonic()
        if any(one.has_key(server, key) and one.in_progress(now) for one in self._submissions):
            raise SubmitInProgress(key)

    async def _receive(self, request: web.Request, submission: Submission) -> Payload:
        try:
            received = await receive(
                self._body(request, submission),
                request.headers.get("Content-Type", ""),
                request.content_length,
                staging=submission.staging,
                limits=submission.limits,
                user_agent=request.headers.get("User-Agent", ""),
                on_field=submission.field,
                on_first_file=submission.first_file,
            )
        except _AlreadyAccepted as accepted:
            return accepted.payload
        except FormRefused as problem:
            raise form_problem(problem) from None
        except ConnectionError:
            raise  # the sender is gone
        except OSError as problem:
            raise disk_problem(problem) from None
        # Not cancelled with the request: a payload that has a row must reach the runner.
        return await asyncio.shield(asyncio.ensure_future(self._store(submission, received.bundle)))

    async def _body(self, request: web.Request, submission: Submission) -> AsyncIterator[bytes]:
        size = request.content_length
        look_up = size is None or size >= _EARLY_LOOKUP_BYTES
        async for chunk in request.content.iter_any():
            submission.last_data_at = self._clock.monotonic()
            yield chunk
            if look_up and submission.order is not None:
                look_up = False
                order = submission.order
                known = await self._payloads.look_up(
                    order.server, submission.key, order.bundle_digest, submission.start
                )
                if known is not None:
                    raise _AlreadyAccepted(known)
        submission.complete = True

    async def _store(self, submission: Submission, summary: BundleSummary) -> Payload:
        """Store the row, after the bundle: a crash between them leaves a file without a row."""
        try:
            self._admission.check_running()
            payload, created = await self._payloads.add(
                submission.new_payload(summary, self._defaults), submission.start
            )
        except Exception:
            submission.remove_files()
            raise
        if not created:
            submission.remove_files()
            return payload
        order = submission.order
        if order is not None and order.keep_bundle:
            content = order.server, summary.digest
            self._bundles.use(payload.bundle_file, content, summary.size, payload.id)
        self.accepted(payload)
        return payload

    def accepted(self, payload: Payload) -> None:
        """A payload is new: it has a row."""
        log.info(
            "payload.accepted", payload_id=payload.id, key=payload.key, service=payload.service
        )
        self._enqueue(payload)
