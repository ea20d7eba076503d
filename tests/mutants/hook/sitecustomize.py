"""Loads changed modules in the place of those of the repository, in every interpreter that finds
this folder on ``PYTHONPATH`` and ``MUTANTS_CODE`` in its environment: see ``tests/mutants/swap.py``.
"""

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import marshal
import mmap
import os
import struct
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

CODE = "MUTANTS_CODE"
"""A folder with a file of compiled code for each module that is changed, named after it."""
NOTES = "MUTANTS_NOTES"
"""A file for what is reached."""
NOW = "MUTANTS_NOW"
"""A file with the number of the test that runs, shared by the processes that the test starts."""


class Loader(importlib.machinery.SourceFileLoader):
    code: CodeType

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, folder: Path) -> None:
        self._changed = {path.name: path for path in folder.iterdir()}

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._changed:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return spec
        code: CodeType = marshal.loads(self._changed[name].read_bytes())
        if Path(spec.origin) == Path(code.co_filename):  # and no installed copy of it
            loader = Loader(name, spec.origin)
            loader.code = code
            spec.loader = loader
        return spec


class Notes:
    """Writes which test reaches which place, in whatever process or thread it happens."""

    def __init__(self, path: str, now: str) -> None:
        self._path = path
        self._known: set[tuple[int, int]] = set()
        self.share(now)

    def share(self, now: str) -> None:
        with Path(now).open("r+b") as file:
            self._now = mmap.mmap(file.fileno(), 4)

    def begin(self, test: int) -> None:
        self._now[:] = struct.pack("i", test)

    def reached(self, place: int) -> None:
        (test,) = struct.unpack("i", self._now[:])
        if (test, place) not in self._known:
            # Opened each time: programs that tests fork close all that is open. A test of a process
            # that may open nothing more notes nothing.
            with contextlib.suppress(OSError), open(self._path, "ab", buffering=0) as file:  # noqa: PTH123
                file.write(b"%d %d\n" % (test, place))
                self._known.add((test, place))


def install() -> None:
    if folder := os.environ.get(CODE):
        sys.meta_path.insert(0, Finder(Path(folder)))
    if (notes := os.environ.get(NOTES)) and Path(notes).exists():
        builtins.mutants_notes = Notes(notes, os.environ[NOW])  # type: ignore[attr-defined]


install()
