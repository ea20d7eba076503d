"""Accepts several attempts at once: those whose bundles came with them, and those whose bundles are
here already."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.intake import submission
from client_agent.intake.admission import Admission
from client_agent.intake.orders import check_bundle, check_order
from client_agent.intake.submission import disk_problem, form_problem, ordered
from client_agent.payloads.errors import BundleMissing, Refused
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared.files.names import BundleError
from shared.ids import AttemptKey, Start
from shared.multipart.parser import FilePart, FormRefused
from shared.multipart.sinks import RawSink
from shared.wire import Order

_PART: Final = FilePart("bundle", "bundle.zip")


def store(folders: Folders, sent: Sequence[tuple[Order, memoryview]]) -> list[str | Refused]:
    """For each bundle its name in the folder of bundles, where it survives a power cut; or why it
    is refused."""
    staged = [_stage(folders, *one) for one in sent]
    paths = [one for one in staged if isinstance(one, Path)]
    try:
        names = iter(folders.seal_bundles(paths))
    except OSError as problem:
        refused = disk_problem(problem)
        return [refused if isinstance(one, Path) else one for one in staged]
    return [next(names) if isinstance(one, Path) else one for one in staged]


def _stage(folders: Folders, order: Order, content: memoryview) -> Path | Refused:
    path = folders.staging()
    sink = RawSink(path, max_bytes=len(content))
    try:
        sink.begin(_PART)
        sink.write(content)
        check_bundle(order, sink.finish())
    except BundleError as problem:
        sink.abort()
        return form_problem(FormRefused.of_bundle(problem))
    except OSError as problem:
        sink.abort()
        return disk_problem(problem)
    except BaseException:
        sink.abort()
        raise
    return path


@dataclass(frozen=True, slots=True)
class Checked:
    """An order that may be accepted.

    Attributes:
        bundle: file name of its bundle, stored and nobody's yet; None: it has to be here.
    """

    order: Order
    key: AttemptKey
    bundle: str | None = None


class ManyIntake:
    """``POST /payloads``. Each order has its own answer: its payload, new or
    not, or what a submit of it would raise.

    Args:
        accepted: is called with each new payload.
        max_bytes: of a bundle.
    """

    def __init__(
        self,
        payloads: Payloads,
        folders: Folders,
        bundles: SharedBundles,
        admission: Admission,
        accepted: Callable[[Payload], None],
    ) -> None:
        self._payloads, self._folders, self._admission = payloads, folders, admission
        self._bundles, self._accepted = bundles, accepted

    async def store(
        self, sent: Sequence[tuple[Order, memoryview | None]]
    ) -> list[Checked | Exception]:
        """Check the orders, and store the bundles of those that have one; to be followed by
        :meth:`add`. A crash between them leaves files without rows."""
        try:
            if sent:
                await self._admission.check_ready(sum(len(data or b"") for _, data in sent))
        except Refused as problem:
            return [problem] * len(sent)
        checked = [self._check(*one) for one in sent]
        bundles = [
            (one.order, content)
            for one, (_, content) in zip(checked, sent, strict=True)
            if isinstance(one, Checked) and content is not None
        ]
        if not bundles:
            return checked
        stored = iter(await asyncio.to_thread(store, self._folders, bundles))
        for number, (one, (_, content)) in enumerate(zip(checked, sent, strict=True)):
            if isinstance(one, Checked) and content is not None:
                name = next(stored)
                checked[number] = (
                    name if isinstance(name, Refused) else Checked(one.order, one.key, name)
                )
        return checked

    def _check(self, order: Order, content: memoryview | None) -> Checked | Exception:
        size = 0 if content is None else len(content)
        try:
            key = check_order(order)
            self._admission.check_service(order.service, order.limits)
        except Refused as problem:
            return problem
        if order.inputs is not None:
            return Refused(400, "invalid_order", "order: inputs: they have to be sent along")
        if size > submission.MAX_BUNDLE:
            why = f"the bundle has {size} bytes, the limit is {submission.MAX_BUNDLE}"
            return Refused(413, "too_large", why)
        return Checked(order, key)

    async def add(
        self, checked: Sequence[Checked | Exception], start: Start
    ) -> list[Payload | Exception]:
        """Store the rows. Not to be cancelled: a payload that has a row must reach the runner."""
        return list(await asyncio.gather(*[_caught(self._add(one, start)) for one in checked]))

    async def _add(self, one: Checked | Exception, start: Start) -> Payload:
        if isinstance(one, Exception):
            raise one
        if one.bundle is None:
            return await self._add_without_bundle(one, start)
        order, file = one.order, one.bundle
        try:
            self._admission.check_running()
            bundle = file, order.bundle_size, order.bundle_digest
            payload, created = await self._payloads.add(ordered(order, bundle), start)
        except Exception:
            self._folders.remove_file(self._folders.bundle(file))
            raise
        if not created:
            self._folders.remove_file(self._folders.bundle(file))
            return payload
        if order.keep_bundle:
            content = order.server, order.bundle_digest
            self._bundles.use(file, content, order.bundle_size, payload.id)
        self._accepted(payload)
        return payload

    async def _add_without_bundle(self, one: Checked, start: Start) -> Payload:
        order = one.order
        content = order.server, order.bundle_digest
        with self._bundles.pin(content) as file:
            if file is None:
                # A key that is known is answered all the same: the order may be a repeat.
                known = await self._payloads.look_up(
                    order.server, one.key, order.bundle_digest, start
                )
                if known is None:
                    raise BundleMissing(order.bundle_digest)
                return known
            self._admission.check_running()
            bundle = file, order.bundle_size, order.bundle_digest
            payload, created = await self._payloads.add(ordered(order, bundle), start)
            if created:
                self._bundles.use(file, content, order.bundle_size, payload.id)
                self._accepted(payload)
        return payload


async def _caught(work: Awaitable[Payload]) -> Payload | Exception:
    try:
        return await work
    except Exception as problem:  # noqa: BLE001 - each order has its own answer
        return problem
