"""Takes the second file of a submit: the inputs, a ZIP of other jobs' files. Blocking."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import IO, Final

from shared.files.bundles.format import BundleSummary
from shared.files.bundles.writer import Data
from shared.files.durable import remove_quietly, write_all
from shared.files.errors import BundleError
from shared.multipart.parser import FilePart
from shared.multipart.sinks import Sink
from shared.wire import InputsInfo

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
