"""Mutants that say which promise they break: ``guarantees.txt``, ``sandbox.txt``, ``access.txt``.

Below a line ``== PROMISE`` stands for each mutant what is taken out and where, as ``MODULE:NAME`` of
a function, a class or a constant; then, after ``- `` and ``+ ``, Python that occurs there once,
however it is laid out, and what takes its place:

* an expression, or statements that follow each other;
* ``name=value``: an argument of a call; ``{key: value}``: an entry of a dict; ``@name``;
* ``…text…``: a part of a text, such as SQL, whatever its white space.

Without ``+`` it is taken out: a statement, or an element, operand, argument or entry.
"""

from __future__ import annotations

import ast
import copy
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.mutants import old_form
from tests.mutants.changes import Change
from tests.mutants.old_form import ROOT, Text
from tests.mutants.readers import file_of, targets, tree_of
from tests.mutants.trees import Function

FILES: Final = ("guarantees.txt", "sandbox.txt", "access.txt")
Edit = Callable[[], None]


def all_of_them() -> tuple[Text, ...]:
    """Of each file that is there: rule, what is taken out, where, old, new."""
    paths = [Path(__file__).with_name(name) for name in FILES]
    found = [one for path in paths for one in old_form.read(path.read_text())]
    return tuple(
        Text(one.file.partition(" ")[0], one.rule, one.protection, one.old, one.new)
        for one in found
    )


def is_new(mutant: Text) -> bool:
    return ":" in mutant.file


def problem(mutant: Text) -> str:
    """Why it does not fit the code; "" if it does."""
    module, _, name = mutant.file.partition(":")
    if not (ROOT / file_of(module)).is_file():
        return f"there is no module {module}"
    if mutant.old == mutant.new:
        return "it changes nothing"
    try:
        if not mutant.new.startswith("…"):
            ast.parse(textwrap.dedent(mutant.new))
        _only_edit(tree_of(file_of(module)), name, mutant.old, mutant.new)
    except (LookupError, SyntaxError) as error:
        return str(error)
    return ""


def change_of(mutant: Text) -> Change:
    """
    Raises:
        LookupError: it does not fit the code.
    """
    if wrong := problem(mutant):
        raise LookupError(wrong)
    module, _, name = mutant.file.partition(":")
    tree = copy.deepcopy(tree_of(file_of(module)))
    edit(tree, name, mutant.old, mutant.new)
    return Change(mutant.rule, mutant.protection, file_of(module), tree)


def edit(tree: ast.Module, name: str, old: str, new: str) -> None:
    """Put the new text in the place of the old one.

    Raises:
        LookupError: it is not there exactly once.
    """
    _only_edit(tree, name, old, new)()
    ast.fix_missing_locations(tree)


def _only_edit(tree: ast.Module, name: str, old: str, new: str) -> Edit:
    edits = [one for scope in _scopes(tree, name) for one in _edits(scope, old, new)]
    if len(edits) != 1:
        raise LookupError(f"{old!r} occurs {len(edits)} times in {name or 'the module'}")
    return edits[0]


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
    if isinstance(node, Function | ast.ClassDef):
        return {node.name}
    return {*targets(node)}


def _edits(scope: ast.AST, old: str, new: str) -> Iterator[Edit]:
    old, new = textwrap.dedent(old), textwrap.dedent(new)
    if old.startswith("…"):
        yield from _texts(scope, old.strip("…"), new.strip("…"))
        return
    if old.startswith("@"):
        pattern = ast.parse(old[1:], mode="eval").body
        yield from _elements(scope, pattern, None, ("decorator_list",))
        return
    body = ast.parse(old).body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        found = [*_expressions(scope, body[0].value, new)]
        if not found and isinstance(body[0].value, ast.Dict) and len(body[0].value.keys) == 1:
            found = [*_entries(scope, body[0].value, new)]
        yield from found
        return
    found = [*_statements(scope, body, ast.parse(new).body or [ast.Pass()])]
    if not found and len(body) == 1 and isinstance(body[0], ast.Assign):
        found = [*_arguments(scope, body[0], new)]
    yield from found


def _same(one: object, other: ast.AST) -> bool:
    return isinstance(one, ast.AST) and ast.dump(one) == ast.dump(other)


def _fields(scope: ast.AST) -> Iterator[tuple[Any, str, Any]]:
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            yield node, field, value


def _expressions(scope: ast.AST, pattern: ast.expr, new: str) -> Iterator[Edit]:
    if not new:
        yield from _elements(scope, pattern, ast.Pass(), None)
        return
    put = ast.parse(new).body[0]
    for node, field, value in _fields(scope):
        values = value if isinstance(value, list) else [value]
        for index, one in enumerate(values):
            if not _same(one, pattern):
                continue
            if not isinstance(put, ast.Expr):  # a statement in the place of one
                if isinstance(node, ast.Expr):
                    yield from _statements(scope, [node], [put])
            elif isinstance(value, list):
                yield lambda v=value, i=index: v.__setitem__(i, put.value)  # type: ignore[misc]
            else:
                yield lambda n=node, f=field: setattr(n, f, put.value)  # type: ignore[misc]


def _elements(
    scope: ast.AST, pattern: ast.expr, put: ast.stmt | None, fields: tuple[str, ...] | None
) -> Iterator[Edit]:
    """Take out an element of a list of the syntax, or the statement that it is."""
    for node, field, value in _fields(scope):
        if isinstance(node, ast.Expr) and put is not None and _same(value, pattern):
            yield from _statements(scope, [node], [put])
        elif isinstance(value, list) and (fields is None or field in fields):
            for index, one in enumerate(value):
                if _same(one, pattern):
                    yield lambda n=node, v=value, i=index: _drop(n, v, i)  # type: ignore[misc]


def _drop(node: ast.AST, values: list[ast.AST], index: int) -> None:
    del values[index]
    if isinstance(node, ast.BoolOp) and len(values) == 1:
        values.append(ast.Constant(isinstance(node.op, ast.And)))


def _entries(scope: ast.AST, pattern: ast.Dict, new: str) -> Iterator[Edit]:
    key, put = pattern.keys[0], ast.parse(new).body
    for node in ast.walk(scope):
        if not isinstance(node, ast.Dict):
            continue
        for index, (one, value) in enumerate(zip(node.keys, node.values, strict=True)):
            if key is not None and _same(one, key) and _same(value, pattern.values[0]):
                yield lambda n=node, i=index: _entry(n, i, put)  # type: ignore[misc]


def _entry(node: ast.Dict, index: int, put: list[ast.stmt]) -> None:
    del node.keys[index], node.values[index]
    if put:
        made = put[0].value  # type: ignore[attr-defined]
        node.keys[index:index] = made.keys
        node.values[index:index] = made.values


def _arguments(scope: ast.AST, pattern: ast.Assign, new: str) -> Iterator[Edit]:
    name = pattern.targets[0].id  # type: ignore[attr-defined]
    put = ast.parse(new).body
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call):
            continue
        for index, one in enumerate(node.keywords):
            if one.arg == name and _same(one.value, pattern.value):
                made = [ast.keyword(p.targets[0].id, p.value) for p in put]  # type: ignore[attr-defined]
                yield lambda n=node, i=index, m=made: n.keywords.__setitem__(slice(i, i + 1), m)  # type: ignore[misc]


def _statements(scope: ast.AST, pattern: list[ast.stmt], new: list[ast.stmt]) -> Iterator[Edit]:
    for _, _, value in _fields(scope):
        if not isinstance(value, list):
            continue
        for index in range(len(value) - len(pattern) + 1):
            here = value[index : index + len(pattern)]
            if all(_same(one, other) for one, other in zip(here, pattern, strict=True)):
                yield lambda v=value, i=index: v.__setitem__(slice(i, i + len(pattern)), new)  # type: ignore[misc]


def _texts(scope: ast.AST, old: str, new: str) -> Iterator[Edit]:
    wanted = re.compile(r"\s+".join(map(re.escape, re.split(r"\s+", old))))
    for node in ast.walk(scope):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in wanted.finditer(node.value):
                start, end = found.span()
                yield (
                    lambda n=node, s=start, e=end: setattr(  # type: ignore[misc]
                        n, "value", n.value[:s] + new + n.value[e:]
                    )
                )
