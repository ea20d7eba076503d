"""Taking an attempt: its bundle sealed on disk first, then its row, once for each key."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web
from pydantic import ValidationError

from client_agent.intake.admission import Admission
from client_agent.payloads.errors import Refused, SubmitInProgress
from client_agent.payloads.payload import NewPayload, Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from shared.clock import Clock, wait_for
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.reader import MAX_FILES
from shared.files.bundles.writer import Data
from shared.files.errors import BundleError
from shared.ids import AttemptKey
from shared.multipart import BundleSink, FilePart, FormLimits, FormRefused, RawSink, Sink, receive
from shared.wire import Limits, Order

log: structlog.stdlib.BoundLogger = structlog.get_logger()

ORDER: Final = "order"
"""The text field, before the bundle, in which a server of ours says what to run."""
_ASK_FIRST: Final = 1 << 18
"""For a body of at least this many bytes it is worth a look whether its key is known already."""
SETTLE_WAIT_S: Final = 10.0
"""So long a question about a key waits for the order that is on its way."""
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Defaults:
    """For bundles of a job-orchestrator server, which sends nothing but files."""

    service: str
    timeout_s: float
    limits: Limits


class _Known(Exception):
    """The key has its payload already: the rest of the body need not be read."""

    def __init__(self, payload: Payload) -> None:
        super().__init__()
        self.payload = payload


class Intake:
    """``POST /submit``.

    Args:
        take: hands a new payload to the runner.
        max_bytes: of a bundle.
    """

    def __init__(
        self,
        payloads: Payloads,
        folders: Folders,
        admission: Admission,
        take: Callable[[Payload], None],
        *,
        max_bytes: int,
        defaults: Defaults,
        clock: Clock,
    ) -> None:
        self._payloads, self._folders, self._admission = payloads, folders, admission
        self._take, self._defaults, self._clock = take, defaults, clock
        self._under_way: set[_Form] = set()
        self._limits = FormLimits(max_bytes=max_bytes, max_files=MAX_FILES)

    async def submit(self, request: web.Request) -> Payload:
        """The payload of the request's key, new or not; a new one's bundle is on the disk.

        Raises:
            Refused, DigestMismatch, KeyRefused, StaleAttempt, StaleLease, DatabaseUnavailable
        """
        await self._admission.check_work(request.content_length or 0)
        form = _Form(self._folders, self._admission, self._limits)
        try:
            return await self._receive(request, form)
        finally:
            self._under_way.discard(form)
            form.over.set()

    async def submitted(self, server: str, key: AttemptKey) -> None:
        """Return when no order with this key is on its way in, or what is on its way has not moved
        for some time: it may then be refused for good.

        Raises:
            SubmitInProgress: the order goes on coming in, or is being stored.
        """
        until = self._clock.monotonic() + SETTLE_WAIT_S
        while (left := until - self._clock.monotonic()) > 0:
            form = next((one for one in self._under_way if one.is_of(server, key)), None)
            if form is None:
                return
            await wait_for(form.over, left, self._clock)
        now = self._clock.monotonic()
        if any(one.is_of(server, key) and one.moves(now) for one in self._under_way):
            raise SubmitInProgress(key)

    async def _receive(self, request: web.Request, form: _Form) -> Payload:
        self._under_way.add(form)
        try:
            received = await receive(
                self._body(request, form),
                request.headers.get("Content-Type", ""),
                request.content_length,
                staging=form.staging,
                limits=self._limits,
                on_field=form.field,
                on_first_file=form.first_file,
            )
        except _Known as known:
            return known.payload
        except FormRefused as problem:
            raise Refused(problem.status, _code(problem), problem.message) from None
        except ConnectionError:
            raise  # whoever sent it is gone
        except OSError as problem:
            raise _disk(problem) from None
        # To the end, even if whoever asked is gone: a payload with a row must reach the runner.
        return await asyncio.shield(asyncio.ensure_future(self._keep(form, received.bundle)))

    async def _body(self, request: web.Request, form: _Form) -> AsyncIterator[bytes]:
        size = request.content_length
        ask = size is None or size >= _ASK_FIRST
        async for chunk in request.content.iter_any():
            form.moved_at = self._clock.monotonic()
            yield chunk
            if ask and form.order is not None:
                ask = False
                order = form.order
                known = await self._payloads.known(
                    order.server, form.key, order.bundle_digest, order.lease
                )
                if known is not None:
                    raise _Known(known)
        form.complete = True

    async def _keep(self, form: _Form, sealed: BundleSummary) -> Payload:
        """Bytes before row: a crash between them leaves an orphan file."""
        bundle = form.bundle
        try:
            self._admission.check_staying()
            payload, fresh = await self._payloads.add(form.new_payload(sealed, self._defaults))
        except Exception:
            self._folders.remove_file(self._folders.bundle(bundle))
            raise
        if not fresh:
            self._folders.remove_file(self._folders.bundle(bundle))
            return payload
        log.info("payload.taken", payload=payload.id, key=payload.key, service=payload.service)
        self._take(payload)
        return payload


class _Form:
    """One submit: the order of a server of ours, or the plain files of a job-orchestrator's.

    Attributes:
        bundle: name of the sealed bundle.
        moved_at: monotonic time at which the last bytes came.
        complete: all bytes have come; what is left to do is ours.
        over: set when it is answered.
    """

    def __init__(self, folders: Folders, admission: Admission, limits: FormLimits) -> None:
        self.staging = folders.staging()
        self.bundle = ""
        self.order: Order | None = None
        self.key = AttemptKey(0, 0)
        self.moved_at = 0.0
        self.complete = False
        self.over = asyncio.Event()
        self._folders, self._admission, self._limits = folders, admission, limits

    def is_of(self, server: str, key: AttemptKey) -> bool:
        return self.order is not None and (self.order.server, self.key) == (server, key)

    def moves(self, now: float) -> bool:
        """Whether it may yet come to its end: a connection that was lost is not always noticed."""
        return self.complete or now < self.moved_at + SETTLE_WAIT_S

    def field(self, name: str, value: str, _: dict[str, str]) -> None:
        """Text that is no order means nothing to us: other versions may send it."""
        if name != ORDER:
            return
        try:
            order = Order.model_validate_json(value)
            self.key = AttemptKey.parse(order.key)
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Refused(400, "invalid_order", f"order: {where}: {first['msg']}") from None
        except ValueError as problem:
            raise Refused(400, "invalid_order", f"order: {problem}") from None
        self._admission.check_service(order.service, order.limits)
        self._admission.check_space(order.bundle_size)
        if order.bundle_size > self._limits.max_bytes:
            raise Refused(
                413,
                "too_large",
                f"the bundle has {order.bundle_size} bytes, "
                f"the limit is {self._limits.max_bytes} (agent.max_upload)",
            )
        self.order = order

    def first_file(self, _: dict[str, str]) -> Sink:
        if self.order is None:
            inner: Sink = BundleSink(self.staging, self._limits, "part", archives=False)
        else:
            inner = RawSink(self.staging, max_bytes=self.order.bundle_size)
        return _Sealing(inner, self)

    def seal(self, sealed: BundleSummary) -> None:
        """In the receiving thread: what came is what was ordered, and stays."""
        order = self.order
        if order is not None and sealed.size != order.bundle_size:
            why = f"the bundle has {sealed.size} bytes, the order says {order.bundle_size}"
            raise BundleError("wrong_size", why)
        if order is not None and sealed.digest != order.bundle_digest:
            why = f"the bundle's digest is {sealed.digest}, the order says {order.bundle_digest}"
            raise BundleError("digest_mismatch", why)
        self.bundle = self._folders.seal_bundle(self.staging)

    def unseal(self) -> None:
        if self.bundle:
            self._folders.remove_file(self._folders.bundle(self.bundle))

    def new_payload(self, sealed: BundleSummary, defaults: Defaults) -> NewPayload:
        order = self.order
        return NewPayload(
            server=None if order is None else order.server,
            key=None if order is None else self.key,
            service=defaults.service if order is None else order.service,
            user_id="" if order is None else order.user_id,
            timeout_s=defaults.timeout_s if order is None else order.timeout_s,
            limits=defaults.limits if order is None else order.limits,
            bundle_file=self.bundle,
            bundle_size=sealed.size,
            bundle_digest=sealed.digest,
            lease=0 if order is None else order.lease,
        )


class _Sealing:
    """A sink that also gives the finished bundle its name, in the same visit to the thread."""

    def __init__(self, inner: Sink, form: _Form) -> None:
        self._inner, self._form = inner, form

    def expands(self, part: FilePart) -> bool:
        return self._inner.expands(part)

    def begin(self, part: FilePart) -> None:
        self._inner.begin(part)

    def write(self, data: Data) -> None:
        self._inner.write(data)

    def end(self) -> None:
        self._inner.end()

    def finish(self) -> BundleSummary:
        sealed = self._inner.finish()
        self._form.seal(sealed)
        return sealed

    def abort(self) -> None:
        self._inner.abort()
        self._form.unseal()


def _code(problem: FormRefused) -> str:
    """Servers look for one code: what the matter is with the bundle stands in the message."""
    return "invalid_bundle" if problem.status == 400 else problem.code


def _disk(problem: OSError) -> Refused:
    if problem.errno in _DISK_FULL:
        return Refused(507, "disk_full", "no space is left on the agent's disk")
    return Refused(503, "disk_broken", f"the bundle could not be stored: {problem.strerror}")
