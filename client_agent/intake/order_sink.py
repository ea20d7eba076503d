"""What comes behind an order: its bundle, and the inputs behind that, to the disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import IO, Final

from client_agent.intake.orders import check_bundle
from client_agent.payloads.errors import Refused
from client_agent.storage.folders import Folders
from client_agent.storage.open_beneath import DISK_FULL_ERRNOS
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.reader import MAX_FILES, BundleReader
from shared.files.bundles.stream_digests import StreamDigests
from shared.files.bundles.writer import Data
from shared.files.durable import remove_quietly, write_all
from shared.files.names import BundleError
from shared.files.staged_file import StagedFile
from shared.multipart.parser import FilePart, FormRefused
from shared.wire import Order

_PART: Final = FilePart("bundle", "bundle.zip")


class OrderSink:
    """A sink of the bytes: stores a bundle that is sealed already, as it is, and checks that it is
    the one of the order.

    Args:
        size: bytes of the bundle; all others are the inputs.

    Attributes:
        paths: of the complete files, which are still to be sealed. Only the inputs are fsynced: of
            the bundle its server has another one, and its digest tells whether it is whole.
    """

    def __init__(self, folders: Folders, order: Order, size: int) -> None:
        self._order, self._left = order, size
        self.paths = [folders.staging()]
        self._bundle: StagedFile | None = None
        self._digests = StreamDigests(MAX_FILES)
        self._inputs: IO[bytes] | None = None
        self._sha256 = hashlib.sha256()
        if order.inputs is not None:
            self.paths.append(folders.staging())

    def expands(self, part: FilePart) -> bool:
        return False

    def begin(self, part: FilePart = _PART) -> None:
        self._bundle = StagedFile(self.paths[0])
        if self._order.inputs is not None:
            self._inputs = self.paths[1].open("xb", buffering=0)

    def write(self, data: Data) -> None:
        view = memoryview(data)
        bundle, inputs = view[: self._left], view[self._left :]
        self._left -= len(bundle)
        if bundle and self._bundle is not None:
            self._digests.feed(bundle)
            self._bundle.write(bundle)
        if inputs and self._inputs is not None:
            self._sha256.update(inputs)
            write_all(self._inputs.fileno(), inputs)

    def end(self) -> None:
        pass

    def finish(self) -> BundleSummary:
        assert self._bundle is not None, "it was begun"
        self._bundle.flush()
        with BundleReader(self.paths[0], max_files=MAX_FILES) as reader:
            summary = reader.summary(self._digests)
        self._bundle.close()
        check_bundle(self._order, summary)
        if self._inputs is not None and self._order.inputs is not None:
            if self._sha256.hexdigest() != self._order.inputs.sha256:
                raise BundleError("digest_mismatch", "the inputs have another digest than ordered")
            os.fsync(self._inputs.fileno())
            self._inputs.close()
        return summary

    def abort(self) -> None:
        if self._bundle is not None:
            self._bundle.close()
        if self._inputs is not None:
            with contextlib.suppress(OSError):
                self._inputs.close()
        for path in self.paths:
            remove_quietly(path)


def form_problem(problem: FormRefused) -> Refused:
    """Servers compare one code; the message says what is wrong with the bundle."""
    code = "invalid_bundle" if problem.status == 400 else problem.code
    return Refused(problem.status, code, problem.message)


def disk_problem(problem: OSError) -> Refused:
    if problem.errno in DISK_FULL_ERRNOS:
        return Refused(507, "disk_full", "no space is left on the agent's disk")
    return Refused(503, "disk_broken", f"the bundle could not be stored: {problem.strerror}")
