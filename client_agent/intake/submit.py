"""Accepts attempts: their bundles are stored first, then their rows, once for each key."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from client_agent.intake.admission import Admission
from client_agent.intake.order_sink import OrderSink, disk_problem, form_problem
from client_agent.intake.orders import MAX_ORDER_BYTES, check_order
from client_agent.payloads.errors import BundleMissing, Refused, SubmitInProgress
from client_agent.payloads.payload import NewPayload, Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared.clock import Clock, wait_for
from shared.files.bundles.reader import MAX_FILES
from shared.files.names import BundleError
from shared.ids import AttemptKey, Start
from shared.multipart.parser import FilePart, FormLimits, FormRefused
from shared.multipart.receive import BatchWriter, Threads, receive
from shared.wire import Limits, Order

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_BUNDLE: Final = 100 << 30
"""Bytes: against a server that sends without end; what fits, ``min_free`` says."""
STALLED_S: Final = 10.0
"""An order whose bundle did not go on for so long is taken to be lost."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """For bundles of a job-orchestrator server, which sends nothing but files."""

    service: str
    timeout_s: float
    limits: Limits


@dataclass(frozen=True, slots=True)
class Checked:
    """An order that may be accepted.

    Attributes:
        files: names of its bundle, and of its inputs, stored and nobody's yet; none: the bundle
            has to be here.
    """

    order: Order
    key: AttemptKey
    files: Sequence[str] = ()


@dataclass(slots=True, eq=False)
class _Receiving:
    """An order whose bundle is on its way.

    Attributes:
        last_data_at: monotonic time at which the last bytes arrived.
        complete: all bytes have arrived; what is left to do is the agent's work.
        finished: set when the request is answered.
    """

    which: tuple[str, AttemptKey]
    last_data_at: float
    complete: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class Intake:
    """``POST /payloads`` and ``POST /submit``. An order's answer is its payload, new or not. What
    it is refused with: Refused, DigestMismatch, KeyRefused, StaleAttempt, StaleStart, BundleMissing
    or DatabaseUnavailable.

    Args:
        enqueue: hands a new payload to the runner.
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
        self._receiving: set[_Receiving] = set()

    # -- orders whose bundles are in memory, or here already

    async def store(
        self, sent: Sequence[tuple[Order, int, memoryview]]
    ) -> list[Checked | Exception]:
        """Check the orders, and store the bundles of those that have one; to be followed by
        :meth:`add`. A crash between them leaves files without rows.

        Args:
            sent: the order, bytes of its bundle, and what was sent with it.
        """
        try:
            if sent:
                await self._admission.check_ready(sum(len(content) for _, _, content in sent))
        except Refused as problem:
            return [problem] * len(sent)
        checked = [self._check(order, size) for order, size, _ in sent]
        bundles = [
            (number, *sent[number])
            for number, one in enumerate(checked)
            if isinstance(one, Checked) and sent[number][1]
        ]
        if bundles:
            stored = await asyncio.to_thread(_store, self._folders, [one[1:] for one in bundles])
            for (number, order, *_), files in zip(bundles, stored, strict=True):
                one = checked[number]
                if isinstance(files, Refused):
                    checked[number] = files
                elif isinstance(one, Checked):
                    checked[number] = Checked(order, one.key, files)
        return checked

    def _check(self, order: Order, size: int) -> Checked | Exception:
        try:
            return Checked(order, self._checked(order, size))
        except Refused as problem:
            return problem

    def _checked(self, order: Order, size: int) -> AttemptKey:
        """Raises Refused."""
        key = check_order(order)
        self._admission.check_service(order.service, order.limits)
        if order.inputs is not None and not size:
            raise Refused(400, "invalid_order", "order: inputs: they have to be sent along")
        whole = size + (0 if order.inputs is None else order.inputs.size)
        if whole > MAX_BUNDLE:
            why = f"the bundle has {whole} bytes with its inputs, the limit is {MAX_BUNDLE}"
            raise Refused(413, "too_large", why)
        return key

    async def add(
        self, checked: Sequence[Checked | Exception], start: Start
    ) -> list[Payload | Exception]:
        """Store the rows. Not to be cancelled: a payload that has a row must reach the runner."""
        return list(await asyncio.gather(*[caught(self._add(one, start)) for one in checked]))

    async def _add(self, one: Checked | Exception, start: Start) -> Payload:
        if isinstance(one, Exception):
            raise one
        order = one.order
        content = order.server, order.bundle_digest
        if one.files:
            payload, created = await self._insert(_ordered(order, *one.files), one.files, start)
            if created and order.keep_bundle:
                self._bundles.use(one.files[0], content, order.bundle_size, payload.id)
            return self._accepted(payload, created)
        with self._bundles.pin(content) as file:
            if file is None:
                # A key that is known is answered all the same: the order may be a repeat.
                known = await self._look_up(order, one.key, start)
                if known is None:
                    raise BundleMissing(order.bundle_digest)
                return known
            payload, created = await self._insert(_ordered(order, file), (), start)
            if created:
                self._bundles.use(file, content, order.bundle_size, payload.id)
        return self._accepted(payload, created)

    async def _insert(
        self, new: NewPayload, files: Sequence[str], start: Start
    ) -> tuple[Payload, bool]:
        """The payload, and whether it is new; otherwise nobody needs the files."""
        created = False
        try:
            self._admission.check_running()
            payload, created = await self._payloads.add(new, start)
        finally:
            if not created:
                for name in files:
                    self._folders.remove_file(self._folders.bundle(name))
        return payload, created

    def _accepted(self, payload: Payload, created: bool) -> Payload:
        if created:
            log.info(
                "payload.accepted", payload_id=payload.id, key=payload.key, service=payload.service
            )
            self._enqueue(payload)
        return payload

    async def _look_up(self, order: Order, key: AttemptKey, start: Start) -> Payload | None:
        return await self._payloads.look_up(order.server, key, order.bundle_digest, start)

    # -- one that is large

    async def receive(self, request: web.Request, order: Order, size: int, start: Start) -> Payload:
        """Accept an order whose bundle is still to be read; nothing of it is read if its key is
        known."""
        await self._admission.check_ready(request.content_length or 0)
        key = self._checked(order, size)
        known = await self._look_up(order, key, start)
        if known is not None:
            return known
        length = size + (0 if order.inputs is None else order.inputs.size)
        with self._registered((order.server, key)) as receiving:
            sink = OrderSink(self._folders, order, size)
            writer = BatchWriter(sink, Threads())
            try:
                with _explained():
                    await self._feed(request, writer, length, receiving)
                    await writer.finish({})
            except BaseException:
                await writer.abort()
                raise
            # Not cancelled with the request: a payload that has a row must reach the runner.
            return await asyncio.shield(self._add_staged(Checked(order, key), sink.paths, start))

    async def _feed(
        self, request: web.Request, writer: BatchWriter, length: int, receiving: _Receiving
    ) -> None:
        writer.put(FilePart("bundle", "bundle.zip"))
        async for chunk in request.content.iter_any():
            receiving.last_data_at = self._clock.monotonic()
            length -= len(chunk)
            writer.put(chunk)
            await writer.drain()
        if length:
            raise Refused(400, "wrong_length", f"{length} bytes are missing behind the line")
        receiving.complete = True

    async def _add_staged(self, one: Checked, paths: Sequence[Path], start: Start) -> Payload:
        try:
            files = await asyncio.to_thread(self._folders.seal_bundles, paths)
        except OSError as problem:
            raise disk_problem(problem) from None
        return await self._add(Checked(one.order, one.key, files), start)

    @contextmanager
    def _registered(self, which: tuple[str, AttemptKey]) -> Iterator[_Receiving]:
        receiving = _Receiving(which, self._clock.monotonic())
        self._receiving.add(receiving)
        try:
            yield receiving
        finally:
            self._receiving.discard(receiving)
            receiving.finished.set()

    async def wait_for_submission(self, server: str, key: AttemptKey) -> None:
        """Return when no bundle for this key is being received, or when it has stalled. The key may
        then be refused for good. Raises SubmitInProgress if it goes on, or is being stored."""
        until = self._clock.monotonic() + STALLED_S
        while (left := until - self._clock.monotonic()) > 0:
            one = next((one for one in self._receiving if one.which == (server, key)), None)
            if one is None:
                return
            await wait_for(one.finished, left, self._clock)
        # The loss of a connection is not always noticed.
        stalled = self._clock.monotonic() - STALLED_S
        if any(
            one.which == (server, key) and (one.complete or one.last_data_at > stalled)
            for one in self._receiving
        ):
            raise SubmitInProgress(key)

    # -- from a job-orchestrator server

    async def submit(self, request: web.Request, start: Start) -> Payload:
        """Accept plain files, which have no key."""
        await self._admission.check_ready(request.content_length or 0)
        staging = self._folders.staging()
        with _explained():
            received = await receive(
                request.content.iter_any(),
                request.headers.get("Content-Type", ""),
                request.content_length,
                staging=staging,
                limits=FormLimits(
                    max_bytes=MAX_BUNDLE, max_files=MAX_FILES, max_field_bytes=MAX_ORDER_BYTES
                ),
                user_agent=request.headers.get("User-Agent", ""),
                naming="part",
                archives=False,
            )
        bundle = received.bundle
        return await asyncio.shield(self._add_plain(staging, bundle.size, bundle.digest, start))

    async def _add_plain(self, staging: Path, size: int, digest: str, start: Start) -> Payload:
        try:
            seal = functools.partial(self._folders.seal_bundles, [staging], synced=True)
            (file,) = files = await asyncio.to_thread(seal)
        except OSError as problem:
            raise disk_problem(problem) from None
        usual = self._defaults
        given = usual.service, "", usual.timeout_s, usual.limits
        new = NewPayload(None, None, *given, file, size, digest)
        return self._accepted(*await self._insert(new, files, start))


def _store(
    folders: Folders, sent: Sequence[tuple[Order, int, memoryview]]
) -> list[Sequence[str] | Refused]:
    """For each order the names of its files in the folder of bundles; or why they are refused."""
    staged = [_stage(folders, *one) for one in sent]
    try:
        names = iter(
            folders.seal_bundles([path for one in staged if isinstance(one, list) for path in one])
        )
    except OSError as problem:
        refused = disk_problem(problem)
        return [refused if isinstance(one, list) else one for one in staged]
    return [[next(names) for _ in one] if isinstance(one, list) else one for one in staged]


def _stage(folders: Folders, order: Order, size: int, content: memoryview) -> list[Path] | Refused:
    sink = OrderSink(folders, order, size)
    try:
        with _explained():
            sink.begin()
            sink.write(content)
            sink.finish()
    except Refused as refused:
        sink.abort()
        return refused
    except BaseException:
        sink.abort()
        raise
    return sink.paths


@contextmanager
def _explained() -> Iterator[None]:
    """What is wrong with a bundle, or the disk, as it is said to the server. Raises Refused."""
    try:
        yield
    except BundleError as problem:
        raise form_problem(FormRefused.of_bundle(problem)) from None
    except FormRefused as problem:
        raise form_problem(problem) from None
    except ConnectionError:
        raise  # the sender is gone
    except OSError as problem:
        raise disk_problem(problem) from None


_ORDERED: Final = tuple({one.name for one in fields(NewPayload)} & Order.model_fields.keys())


def _ordered(order: Order, bundle: str, inputs: str = "") -> NewPayload:
    """The payload of an order, whose files have these names."""
    said = {name: getattr(order, name) for name in _ORDERED}
    own = {"bundle_file": bundle, "inputs_file": inputs, "outputs": tuple(order.outputs)}
    return NewPayload(**said | own)


async def caught(work: Awaitable[Payload]) -> Payload | Exception:
    """The payload, or why the order is refused."""
    try:
        return await work
    except ConnectionError:
        raise
    except Exception as problem:  # noqa: BLE001 - each order has its own answer
        return problem
