"""A mutant as the engine needs it: the module with its change, and where that must be reached."""

from __future__ import annotations

import ast
import copy
import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType

from tests.mutants.old_form import Text
from tests.mutants.readers import ROOT, module_of, readers, targets, tree_of, units_of
from tests.mutants.trees import Difference, Function, differences, insert_before

Place = tuple[str, str]
"""A file, and a statement in it: see :attr:`Difference.place`; or a function, ``qualname:``."""


@dataclass(frozen=True)
class Change:
    rule: str
    what: str
    file: str
    new: ast.Module

    @property
    def module(self) -> str:
        return module_of(self.file)

    @functools.cached_property
    def differences(self) -> list[Difference]:
        return differences(tree_of(self.file), self.new)

    @property
    def at_import(self) -> bool:
        """Whether a table, a class or the like changes, which a process that is up has made."""
        return any(one.function is None for one in self.differences)

    @functools.cached_property
    def names(self) -> set[str]:
        """What changes at the import."""
        found = set()
        for one in self.differences:
            if one.function is None:
                found |= (
                    {one.qualname.partition(".")[0]} if one.qualname else {*targets(one.statement)}
                )
        return found - {""}

    @functools.cached_property
    def places(self) -> dict[Place, int]:
        """Where a test must pass, with how far it is from the change."""
        found: dict[Place, int] = {}
        for one in self.differences:
            if one.function is not None:
                found[self.file, one.place] = 0
                continue
            for unit in units_of(self.file):
                if unit.function is not None and unit.qualname in one.named:
                    found[self.file, f"{unit.qualname}:"] = -1
            for steps, unit in readers(self.file, self.names):
                found.setdefault((unit.file, f"{unit.qualname}:"), steps)
        return found

    @functools.cached_property
    def code(self) -> CodeType:
        return compile(self.new, str(ROOT / self.file), "exec", dont_inherit=True)


def from_text(mutant: Text) -> Change:
    """
    Raises:
        LookupError: it does not fit the code.
    """
    if mutant.problem:
        raise LookupError(mutant.problem)
    try:
        tree = ast.parse(mutant.changed)
    except SyntaxError as error:
        raise LookupError(f"{mutant.file} is not valid Python with it: {error}") from error
    return Change(mutant.rule, mutant.protection, mutant.file, tree)


def noted(places: Sequence[Place], changes: Iterable[Change]) -> dict[str, CodeType]:
    """The modules with a call at each place, by name; the number of a place is its index."""
    numbers = {place: number for number, place in enumerate(places)}
    statements: dict[str, dict[int, ast.stmt]] = defaultdict(dict)
    for change in changes:
        for one in change.differences:
            if one.function is not None:
                statements[change.file][numbers[change.file, one.place]] = one.statement
    for file, place in places:
        if place.endswith(":"):
            function = _function(file, place[:-1])
            first = function.body[1:] or function.body
            if not _is_docstring(function.body[0]):
                first = function.body
            statements[file][numbers[file, place]] = first[0]
    made = {}
    for file, there in statements.items():
        # The nodes of the copy that stand for those of the tree.
        memo: dict[int, object] = {}
        tree = copy.deepcopy(tree_of(file), memo)
        for number, statement in there.items():
            call = ast.parse(f"mutants_notes.reached({number})").body[0]
            insert_before(tree.body, memo[id(statement)], call)  # type: ignore[arg-type]
        made[module_of(file)] = compile(tree, str(ROOT / file), "exec", dont_inherit=True)
    return made


def _function(file: str, name: str) -> Function:
    for unit in units_of(file):
        if unit.qualname == name and unit.function is not None:
            return unit.function
    raise LookupError(f"{file} has no {name}")


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
