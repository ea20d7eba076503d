"""One submit: the order of a Ferryman server, or the plain files of a job-orchestrator server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Final

from client_agent.intake.admission import Admission
from client_agent.intake.orders import check_bundle, parse_order
from client_agent.payloads.errors import Refused
from client_agent.payloads.payload import NewPayload
from client_agent.storage.folders import Folders
from client_agent.storage.open_beneath import DISK_FULL_ERRNOS
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.writer import Data
from shared.files.durable import remove_quietly, write_all
from shared.files.names import BundleError
from shared.ids import AttemptKey, Start
from shared.multipart.parser import FilePart, FormLimits, FormRefused
from shared.multipart.sinks import BundleSink, RawSink, Sink
from shared.wire import InputsInfo, Limits, Order

INPUTS: Final = "inputs"
"""The form's field, behind the bundle."""


class SinkWithInputs:
    """A sink for the bundle, and behind it the inputs, byte for byte.

    Args:
        staging: where the inputs are stored.
        announced: what the order says of them.
    """

    def __init__(self, bundle: Sink, staging: Path, announced: InputsInfo) -> None:
        self._bundle, self._staging, self._announced = bundle, staging, announced
        self._out: IO[bytes] | None = None
        self._sha256, self._size = hashlib.sha256(), 0

    def expands(self, part: FilePart) -> bool:
        return False

    def begin(self, part: FilePart) -> None:
        if part.field == INPUTS and self._out is None:
            self._out = self._staging.open("xb", buffering=0)
        else:
            self._bundle.begin(part)

    def write(self, data: Data) -> None:
        if self._out is None:
            self._bundle.write(data)
            return
        self._size += len(data)
        self._check(self._size <= self._announced.size)
        self._sha256.update(data)
        write_all(self._out.fileno(), data)

    def end(self) -> None:
        if self._out is None:
            self._bundle.end()

    def finish(self) -> BundleSummary:
        summary = self._bundle.finish()
        if self._out is None:
            raise BundleError("no_file", f"the form has no file in the field {INPUTS}")
        self._check(self._size == self._announced.size)
        if self._sha256.hexdigest() != self._announced.sha256:
            raise BundleError("digest_mismatch", "the inputs have another digest than ordered")
        os.fsync(self._out.fileno())
        self._out.close()
        return summary

    def abort(self) -> None:
        self._bundle.abort()
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()
            remove_quietly(self._staging)

    def _check(self, fits: bool) -> None:
        if not fits:
            why = f"the inputs have not the {self._announced.size} bytes that the order says"
            raise BundleError("wrong_size", why)


def form_problem(problem: FormRefused) -> Refused:
    """Servers compare one code; the message says what is wrong with the bundle."""
    code = "invalid_bundle" if problem.status == 400 else problem.code
    return Refused(problem.status, code, problem.message)


def disk_problem(problem: OSError) -> Refused:
    if problem.errno in DISK_FULL_ERRNOS:
        return Refused(507, "disk_full", "no space is left on the agent's disk")
    return Refused(503, "disk_broken", f"the bundle could not be stored: {problem.strerror}")


ORDER: Final = "order"
"""The text field, before the bundle, in which a Ferryman server says what to run."""
MAX_BUNDLE: Final = 100 << 30
"""Bytes: against a server that sends without end; what fits, ``min_free`` says."""
STALLED_S: Final = 10.0
"""A submit that sent no bytes for this long is taken to be lost."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """For bundles of a job-orchestrator server, which sends nothing but files."""

    service: str
    timeout_s: float
    limits: Limits


class Submission:
    """What has arrived of one submit.

    Attributes:
        start: of the server that sends it.
        bundle, inputs: file names of the stored bundle and inputs; "" until they are stored.
        last_data_at: monotonic time at which the last bytes arrived.
        complete: all bytes have arrived; what is left to do is the agent's work.
        finished: set when the request is answered.
    """

    def __init__(
        self, folders: Folders, admission: Admission, limits: FormLimits, start: Start
    ) -> None:
        self.start = start
        self.staging = folders.staging()
        self.bundle = self.inputs = ""
        self.staged_inputs: Path | None = None
        self.order: Order | None = None
        self.key = AttemptKey(0, 0)
        self.last_data_at = 0.0
        self.complete = False
        self.finished = asyncio.Event()
        self._folders, self._admission, self.limits = folders, admission, limits

    def has_key(self, server: str, key: AttemptKey) -> bool:
        return self.order is not None and (self.order.server, self.key) == (server, key)

    def in_progress(self, now: float) -> bool:
        """Whether it may still succeed: the loss of a connection is not always noticed."""
        return self.complete or now < self.last_data_at + STALLED_S

    def field(self, name: str, value: str, _: dict[str, str]) -> None:
        """Check the order. Other fields are ignored: other versions may send them."""
        if name != ORDER:
            return
        order, self.key = parse_order(value)
        self._admission.check_service(order.service, order.limits)
        size = order.bundle_size + (0 if order.inputs is None else order.inputs.size)
        self._admission.check_space(size)
        if size > self.limits.max_bytes:
            raise Refused(
                413,
                "too_large",
                f"the bundle has {size} bytes with its inputs, "
                f"the limit is {self.limits.max_bytes}",
            )
        self.order = order

    def first_file(self, _: dict[str, str]) -> Sink:
        """Where the files of the form are written to."""
        if self.order is None:
            sink: Sink = BundleSink(self.staging, self.limits, "part", archives=False)
        else:
            sink = RawSink(self.staging, max_bytes=self.order.bundle_size)
            if self.order.inputs is not None:
                self.staged_inputs = self._folders.staging()
                sink = SinkWithInputs(sink, self.staged_inputs, self.order.inputs)
        return _StoringSink(sink, self)

    def store_bundle(self, summary: BundleSummary) -> None:
        """Compare the bundle with the order, and give it its final name. Blocking."""
        if self.order is not None:
            check_bundle(self.order, summary)
        self.bundle = self._folders.seal_bundle(self.staging)
        if self.staged_inputs is not None:
            self.inputs = self._folders.seal_bundle(self.staged_inputs)

    def remove_files(self) -> None:
        for name in filter(None, (self.bundle, self.inputs)):
            self._folders.remove_file(self._folders.bundle(name))

    def new_payload(self, summary: BundleSummary, defaults: Defaults) -> NewPayload:
        order, bundle = self.order, (self.bundle, summary.size, summary.digest)
        if order is None:
            service, timeout_s, limits = defaults.service, defaults.timeout_s, defaults.limits
            return NewPayload(None, None, service, "", timeout_s, limits, *bundle)
        return ordered(order, bundle, self.inputs)


_ORDERED: Final = tuple({one.name for one in fields(NewPayload)} & Order.model_fields.keys())


def ordered(order: Order, bundle: tuple[str, int, str], inputs: str = "") -> NewPayload:
    """The payload of an order.

    Args:
        bundle: file name, size and digest of the stored bundle.
        inputs: file name of the stored inputs.
    """
    file, size, digest = bundle
    said = {name: getattr(order, name) for name in _ORDERED}
    own = {"bundle_file": file, "bundle_size": size, "bundle_digest": digest, "inputs_file": inputs}
    return NewPayload(**said | own | {"outputs": tuple(order.outputs)})


class _StoringSink:
    """A sink that also stores the finished bundle, in the same visit to the thread."""

    def __init__(self, sink: Sink, submission: Submission) -> None:
        self._sink, self._submission = sink, submission
        self.expands, self.begin = sink.expands, sink.begin
        self.write, self.end = sink.write, sink.end

    def finish(self) -> BundleSummary:
        summary = self._sink.finish()
        self._submission.store_bundle(summary)
        return summary

    def abort(self) -> None:
        self._sink.abort()
        self._submission.remove_files()
