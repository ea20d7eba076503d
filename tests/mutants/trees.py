"""What two versions of a module differ in, and where a test must pass to notice it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Difference:
    """The innermost statement of the old version that another one takes the place of."""

    function: Function | None
    """The outermost one around it; None: it runs at the import."""
    qualname: str
    """Of that function, or of the class around the statement."""
    statement: ast.stmt
    named: frozenset[str] = frozenset()
    """At the import: what the entry that differs names, such as the handler of a route."""

    @property
    def place(self) -> str:
        """Stays the same while the statement does, wherever it moves to in its function."""
        digest = hashlib.sha1(ast.dump(self.statement).encode(), usedforsecurity=False)
        return f"{self.qualname}:{digest.hexdigest()[:8]}"


def same(one: ast.AST | None, other: ast.AST | None) -> bool:
    if one is None or other is None:
        return one is other
    return ast.dump(one) == ast.dump(other)


_NONE: Final[frozenset[str]] = frozenset()


def differences(old: ast.Module, new: ast.Module) -> list[Difference]:
    """Of the statements that differ, the innermost ones."""
    found: list[Difference] = []
    _bodies(old.body, new.body, None, "", found)
    return found


def _bodies(
    old: Sequence[ast.stmt],
    new: Sequence[ast.stmt],
    function: Function | None,
    name: str,
    found: list[Difference],
) -> None:
    if len(old) != len(new):
        start = 0
        while start < min(len(old), len(new)) and same(old[start], new[start]):
            start += 1
        found.append(Difference(function, name, old[min(start, len(old) - 1)]))
        return
    for one, other in zip(old, new, strict=True):
        if not same(one, other):
            _statements(one, other, function, name, found)


def _statements(
    old: ast.stmt, new: ast.stmt, function: Function | None, name: str, found: list[Difference]
) -> None:
    """One statement that differs: in a body below it, or itself."""
    inner = f"{name}.{old.name}".strip(".") if hasattr(old, "name") else name
    if type(old) is not type(new) or not _same_heads(old, new):
        found.append(Difference(function, name, old, _entry(old, new) if not function else _NONE))
        return
    if isinstance(old, FUNCTIONS) and function is None:
        function, name = old, inner
    elif isinstance(old, ast.ClassDef) and function is None:
        name = inner
    for one, other in zip(_bodies_of(old), _bodies_of(new), strict=True):
        _bodies(one, other, function, name, found)


def _entry(old: ast.AST, new: ast.AST) -> frozenset[str]:
    """The names in the innermost call that holds all of the difference."""
    while type(old) is type(new):
        below = [
            (one, other)
            for one, other in zip_longest(ast.iter_child_nodes(old), ast.iter_child_nodes(new))
            if not same(one, other)
        ]
        if len(below) != 1 or None in below[0] or isinstance(below[0][0], ast.Attribute | ast.Name):
            break
        old, new = below[0]
        if isinstance(old, ast.keyword):
            break
    return frozenset(node.id for node in ast.walk(old) if isinstance(node, ast.Name))


def _bodies_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, list) and field in ("body", "orelse", "finalbody"):
            yield value
        elif isinstance(value, list) and field in ("handlers", "cases"):
            for one in value:
                yield from _bodies_of(one)


def _same_heads(old: ast.AST, new: ast.AST) -> bool:
    """Whether they are alike apart from the statements of their bodies."""
    if type(old) is not type(new):
        return False
    for (field, one), (_, other) in zip(ast.iter_fields(old), ast.iter_fields(new), strict=True):
        if field in ("body", "orelse", "finalbody") and isinstance(one, list):
            if bool(one) != bool(other):
                return False
        elif field in ("handlers", "cases"):
            if len(one) != len(other) or not all(map(_same_heads, one, other)):
                return False
        elif isinstance(one, list):
            if len(one) != len(other) or not all(
                same(a, b) if isinstance(a, ast.AST) else a == b
                for a, b in zip(one, other, strict=True)
            ):
                return False
        elif isinstance(one, ast.AST):
            if not isinstance(other, ast.AST) or not same(one, other):
                return False
        elif one != other:
            return False
    return True


def functions(body: Sequence[ast.stmt], name: str = "") -> Iterator[tuple[str, Function]]:
    """Those that are in no other function, with their qualified names."""
    for node in body:
        if isinstance(node, FUNCTIONS):
            yield f"{name}.{node.name}".strip("."), node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{name}.{node.name}".strip("."))
        else:
            for below in _bodies_of(node):
                yield from functions(below, name)


def insert_before(body: list[ast.stmt], target: ast.stmt, call: ast.stmt) -> bool:
    """Put the call before the target, wherever below the body it is."""
    for index, node in enumerate(body):
        if node is target:
            body.insert(index, ast.fix_missing_locations(ast.copy_location(call, node)))
            return True
        if any(insert_before(below, target, call) for below in _bodies_of(node)):
            return True
    return False
