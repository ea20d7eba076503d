"""Puts a change into this process: its functions get other code, wherever they are referred to."""

import gc
import marshal
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from tests.mutants.forms import Change
from tests.mutants.hook.sitecustomize import CODE, install
from tests.mutants.places import ROOT, tree_of

HOOK: Final = Path(__file__).parent / "hook"


def key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Functions:
    def __init__(self) -> None:
        gc.unfreeze()
        self._by_code: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename.startswith(str(ROOT)):
                self._by_code[key(one.__code__)].append(one)
        gc.freeze()

    def can_take(self, change: Change) -> bool:
        """Whether what changes is a function, which this process has or will import."""
        if not change.spot.function or change.module not in sys.modules:
            return bool(change.spot.function)
        found = [(old, new) for old, new in _pairs(change) if self._by_code[key(old)]]
        same = all(len(old.co_freevars) == len(new.co_freevars) for old, new in found)
        return same and change.spot.function in {old.co_qualname for old, _ in found}

    def take(self, change: Change) -> None:
        if change.module in sys.modules:
            for old, new in _pairs(change):
                for function in self._by_code[key(old)]:
                    function.__code__ = new


def _pairs(change: Change) -> Iterator[tuple[CodeType, CodeType]]:
    """The function that changes and those within, old and new."""
    old = compile(tree_of(change.file), str(ROOT / change.file), "exec", dont_inherit=True)
    for one, other in _below(old, change.code):
        if one.co_qualname.partition(".<locals>")[0] == change.spot.function:
            yield one, other


def _below(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """What is defined alike in both, by its name and its turn among those of that name."""
    left = [one for one in new.co_consts if isinstance(one, CodeType)]
    for one in old.co_consts:
        same = (
            other for other in left if isinstance(one, CodeType) and other.co_name == one.co_name
        )
        if other := next(same, None):
            left.remove(other)
            yield one, other
            yield from _below(one, other)


def write(code: dict[str, CodeType], folder: Path) -> None:
    """For interpreters that are started with :func:`environment`."""
    folder.mkdir(parents=True)
    for name, one in code.items():
        (folder / name).write_bytes(marshal.dumps(one))


def environment(folder: Path) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(HOOK), *(one for one in before if one and one != str(HOOK))])
    return {"PYTHONPATH": path, CODE: str(folder)}


def take_at_import(folder: Path) -> None:
    """For what this process and those it starts import later."""
    os.environ.update(environment(folder))
    install()
