"""Mutants: which promise each breaks, what it takes out, and what takes its place.

New form, ``guarantees.txt``, ``sandbox.txt``, ``access.txt``: below a line ``== PROMISE`` stands
for each what is taken out and where, as ``MODULE:NAME`` of a function, a class or a constant; then,
after ``- `` and ``+ ``, Python that occurs there once, however it is laid out, and what takes its
place; or both in one line, ``- OLD → NEW``:

* an expression, or statements that follow each other;
* ``name=value``: an argument of a call; ``{key: value}``: an entry of a dict; ``@name``;
* ``…text…``: a part of a text, such as SQL, whatever its white space.

Without a new one it is taken out: a statement, or an element, operand, argument or entry.

Old form, ``old/*.txt``, of parts that are rebuilt next: a line ``== FILE``; for each its rule and
what it takes out, then the lines of the old text after ``- `` and those of the new one after ``+ ``.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Final

from tests.mutants.places import (
    ROOT,
    Function,
    Place,
    file_of,
    first_of,
    functions,
    module_of,
    readers,
    spot,
    targets,
    tree_of,
)

FOLDER: Final = Path(__file__).parent
FILES: Final = ("guarantees.txt", "sandbox.txt", "access.txt")
Edit = tuple[int, Callable[[], object]]
"""The line where it is, and how to make it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    rule: str
    what: str
    where: str
    """A file, or, in the new form, ``MODULE:NAME``."""
    old: str
    new: str

    @property
    def is_new(self) -> bool:
        return ":" in self.where

    @property
    def file(self) -> str:
        return file_of(self.where.partition(":")[0]) if self.is_new else self.where

    def change(self) -> Change:
        """Raises LookupError where it does not fit the code."""
        if not (ROOT / self.file).is_file():
            raise LookupError(f"there is no {self.file}")
        if self.old == self.new:
            raise LookupError("it changes nothing")
        try:
            line, tree = self._made((ROOT / self.file).read_text())
        except SyntaxError as error:
            raise LookupError(f"no Python: {error}") from error
        return Change(self, tree, line)

    def _made(self, text: str) -> tuple[int, ast.Module]:
        if self.is_new:
            tree = ast.parse(text)
            return edit(tree, self.where.partition(":")[2], self.old, self.new), tree
        if (count := text.count(self.old)) != 1:
            raise LookupError(f"what it takes out occurs {count} times in {self.file}")
        old, new = self.old.split("\n"), [*self.new.split("\n"), None]
        alike = next((n for n, line in enumerate(old) if line != new[n]), len(old) - 1)
        line = text[: text.index(self.old)].count("\n") + 1 + alike
        return line, ast.parse(text.replace(self.old, self.new))


class Change:
    def __init__(self, mutant: Mutant, new: ast.Module, line: int) -> None:
        """``line`` is one of the module as it is."""
        self.what, self.file, self.new, self.line = mutant.what, mutant.file, new, line
        self.label = f"{mutant.rule} · {mutant.what}"
        self.module = module_of(self.file)
        self.spot = spot(tree_of(self.file), line)

    @functools.cached_property
    def names(self) -> set[str]:
        """What changes at the import: what a process that is up has made already."""
        if self.spot.function:
            return set()
        around = [one for one in tree_of(self.file).body if one.lineno <= self.line]
        return {around[-1].name} if hasattr(around[-1], "name") else {*targets(around[-1])}

    @functools.cached_property
    def places(self) -> dict[Place, int]:
        """Where a test must come by, with how far it is from the change."""
        if self.spot.function:
            return {(self.file, self.spot.statement): 0}
        around = [
            node
            for node in ast.walk(self.spot.statement)
            if isinstance(node, ast.Call) and node.lineno <= self.line <= (node.end_lineno or 0)
        ]
        named = {
            one.id for call in around[-1:] for one in ast.walk(call) if isinstance(one, ast.Name)
        }
        entry = {  # such as the handler of a route
            (self.file, first_of(function)): -1
            for name, function in functions(tree_of(self.file).body)
            if name in named
        }
        return readers(self.names) | entry

    @functools.cached_property
    def code(self) -> CodeType:
        tree = ast.fix_missing_locations(self.new)
        return compile(tree, str(ROOT / self.file), "exec", dont_inherit=True)


def read(path: Path) -> Iterator[Mutant]:
    for block in path.read_text().removeprefix("== ").split("\n== "):
        head, _, rest = block.partition("\n")
        told, old, new = "", list[str](), list[str]()
        for line in [*rest.splitlines(), ""]:
            sign = line[:1] if line[1:2] in ("", " ") else ""
            if sign in ("-", "+"):
                (old if sign == "-" else new).append(line[2:])
                continue
            if told:
                one, _, other = told.partition(" · ")
                is_old = head.endswith(".py")
                if not is_old and " → " in old[0]:
                    old[0], becomes = old[0].split(" → ")
                    new = [becomes]
                rule, what, where = (one, other, head) if is_old else (head.split()[0], one, other)
                yield Mutant(rule, what, where, "\n".join(old), "\n".join(new))
            told, old, new = line, [], []


@functools.cache
def all_of_them() -> tuple[Mutant, ...]:
    paths = [*(FOLDER / name for name in FILES), *sorted(FOLDER.glob("old/*.txt"))]
    return tuple(one for path in paths for one in read(path))


def edit(tree: ast.Module, name: str, old: str, new: str) -> int:
    """Put the new text in the place of the old one; the line where it was. Raises LookupError where
    the old one is not there exactly once.
    """
    edits = [one for scope in _scopes(tree, name) for one in _edits(scope, old, new)]
    if len(edits) != 1:
        raise LookupError(f"{old!r} occurs {len(edits)} times in {name or 'the module'}")
    line, make = edits[0]
    make()
    return line


def _scopes(tree: ast.Module, name: str) -> list[ast.AST]:
    found: list[ast.AST] = [tree]
    for part in filter(None, name.split(".")):
        found = [
            below
            for one in found
            for below in ast.iter_child_nodes(one)
            if isinstance(below, ast.stmt) and part in _named(below)
        ]
    if not found:
        raise LookupError(f"there is no {name}")
    return found


def _named(node: ast.stmt) -> set[str]:
    return {node.name} if isinstance(node, Function | ast.ClassDef) else {*targets(node)}


def _edits(scope: ast.AST, old: str, new: str) -> list[Edit]:
    old, new = textwrap.dedent(old), textwrap.dedent(new)
    if old.startswith("…"):
        return [*_texts(scope, old.strip("…"), new.strip("…"))]
    if old.startswith("@"):
        decorator = ast.parse(old[1:], mode="eval").body
        return [*_replaced(scope, [decorator], [], "decorator_list")]
    pattern: list[Any] = ast.parse(old).body
    put: list[Any] = ast.parse(new).body
    first = pattern[0]
    is_expression = len(pattern) == 1 and isinstance(first, ast.Expr)
    found = list[Edit]()
    if is_expression and all(isinstance(one, ast.Expr) for one in put):
        found += _replaced(scope, [first.value], [one.value for one in put])
    if not is_expression or not put or not isinstance(put[0], ast.Expr):
        found += _replaced(scope, pattern, put or [ast.Pass()])
    if not found and is_expression and isinstance(first.value, ast.Dict):
        found += _entries(scope, first.value, [one.value for one in put])
    assigned = all(isinstance(one, ast.Assign) for one in (*pattern, *put))
    if not found and len(pattern) == 1 and assigned:
        named, *others = (ast.keyword(one.targets[0].id, one.value) for one in (first, *put))
        found += _replaced(scope, [named], others)
    return found


def _same(one: object, other: ast.AST) -> bool:
    return type(one) is type(other) and ast.dump(one) == ast.dump(other)


def _replaced(
    scope: ast.AST, pattern: list[Any], new: list[Any], only: str | None = None
) -> Iterator[Edit]:
    """Nodes that follow each other in a list of the syntax, or one that stands alone."""
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            if only not in (None, field):
                continue
            if isinstance(value, list):
                for index in range(len(value) - len(pattern) + 1):
                    here = slice(index, index + len(pattern))
                    if all(map(_same, value[here], pattern)):
                        yield value[index].lineno, partial(_splice, node, value, here, new)
            elif len(pattern) == len(new) == 1 and _same(value, pattern[0]):
                yield value.lineno, partial(setattr, node, field, new[0])


def _splice(node: ast.AST, values: list[Any], here: slice, new: list[Any]) -> None:
    values[here] = new
    if isinstance(node, ast.BoolOp) and len(values) == 1:
        values.append(ast.Constant(isinstance(node.op, ast.And)))


def _entries(scope: ast.AST, pattern: ast.Dict, put: list[ast.Dict]) -> Iterator[Edit]:
    for node in ast.walk(scope):
        for index, key in enumerate(node.keys if isinstance(node, ast.Dict) else ()):
            here = slice(index, index + 1)
            if key and _same(ast.Dict(node.keys[here], node.values[here]), pattern):  # type: ignore[attr-defined]
                yield key.lineno, partial(_entry, node, here, put)


def _entry(node: Any, here: slice, put: list[ast.Dict]) -> None:
    node.keys[here] = [key for one in put for key in one.keys]
    node.values[here] = [value for one in put for value in one.values]


def _texts(scope: ast.AST, old: str, new: str) -> Iterator[Edit]:
    wanted = re.compile(r"\s+".join(map(re.escape, re.split(r"\s+", old))))
    for node in ast.walk(scope):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in wanted.finditer(node.value):
                text = node.value[: found.start()] + new + node.value[found.end() :]
                yield node.lineno, partial(setattr, node, "value", text)
