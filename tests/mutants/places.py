"""Where a test must come by to notice a change: a statement of a function, or, for what runs at the
import, the functions that read what is made there.
"""

import ast
import copy
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CHANGED: Final = ("server", "client_agent", "shared", "ferryman", "tests/mutants/sample")
STEPS: Final = 3
"""So many tables and classes may be between a constant and the function that reads it."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, ast.stmt]
"""A file, and a statement of it in a function."""


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def file_of(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}.py" if (ROOT / f"{path}.py").is_file() else f"{path}/__init__.py"


@functools.cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@dataclass(frozen=True, slots=True)
class Spot:
    """The innermost statement at a line."""

    statement: ast.stmt
    function: str
    """The qualified name of the outermost function around it; "" for what runs at the import."""


def spot(tree: ast.Module, line: int) -> Spot:
    body: Sequence[ast.stmt] = tree.body
    names: list[str] = []
    function, found = "", tree.body[0]
    while here := [one for one in body if _first_line(one) <= line <= (one.end_lineno or 0)]:
        found = here[0]
        if isinstance(found, Function | ast.ClassDef) and not function:
            names.append(found.name)
            if isinstance(found, Function) and line >= found.body[0].lineno:
                function = ".".join(names)
        body = [*_below(found)]
    return Spot(found, function)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _below(node: ast.AST) -> Iterator[ast.stmt]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.stmt):
            yield one
        elif isinstance(one, ast.ExceptHandler | ast.match_case):
            yield from _below(one)


def targets(node: ast.stmt) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, Function | ast.ClassDef):
            yield one.name
        elif isinstance(one, ast.Assign):
            yield from (name.id for name in one.targets if isinstance(name, ast.Name))
        elif isinstance(one, ast.AnnAssign | ast.AugAssign) and isinstance(one.target, ast.Name):
            yield one.target.id


def functions(body: Iterable[ast.AST], name: str = "") -> Iterator[tuple[str, Function]]:
    """Those that are in no other function, with their qualified names."""
    for node in body:
        if isinstance(node, Function):
            yield f"{name}.{node.name}".strip("."), node
        elif isinstance(node, ast.stmt):
            own = f"{name}.{node.name}".strip(".") if isinstance(node, ast.ClassDef) else name
            yield from functions(_below(node), own)


def first_of(function: Function) -> ast.stmt:
    """Its first statement below the docstring."""
    body = function.body
    return body[1] if ast.get_docstring(function, clean=False) and len(body) > 1 else body[0]


@dataclass(frozen=True, slots=True)
class _Unit:
    """A function, or a statement that runs at the import."""

    place: Place | None
    """Of the function."""
    outermost: str
    loads: frozenset[str]
    defines: frozenset[str]


def _loads(nodes: Iterable[ast.AST]) -> frozenset[str]:
    walked = [one for node in nodes for one in ast.walk(node)]
    names = {one.id for one in walked if isinstance(one, ast.Name)}
    return frozenset(names | {one.attr for one in walked if isinstance(one, ast.Attribute)})


def _head(node: ast.AST) -> Iterator[ast.AST]:
    """What of a statement runs at the import: not the bodies of its functions."""
    for one in ast.iter_child_nodes(node):
        if not (isinstance(node, Function) and isinstance(one, ast.stmt)):
            yield from _head(one) if isinstance(one, ast.stmt) else (one,)


@functools.cache
def _units() -> list[_Unit]:
    made = []
    for path in (path for top in CHANGED for path in (ROOT / top).rglob("*.py")):
        file = str(path.relative_to(ROOT))
        body = tree_of(file).body
        for name, function in functions(body):
            place, outermost = (file, first_of(function)), name.partition(".")[0]
            made.append(_Unit(place, outermost, _loads(function.body), frozenset()))
        for node in body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                bound = {node.name} if hasattr(node, "name") else {*targets(node)}
                made.append(_Unit(None, "", _loads(_head(node)), frozenset(bound)))
    return made


def made_of(names: Iterable[str]) -> Iterator[frozenset[str]]:
    """These names, then those of constants and classes that are made of them, step by step."""
    turn, seen = frozenset(names), set[str]()
    for _ in range(STEPS):
        yield turn
        seen |= turn
        turn = frozenset(name for unit in _reading(turn) for name in unit.defines) - seen


@functools.cache
def _reading(names: frozenset[str]) -> list[_Unit]:
    return [one for one in _units() if one.outermost in names or one.loads & names]


def readers(names: Iterable[str]) -> dict[Place, int]:
    """The functions that read these names, directly or through constants and classes made of them,
    each with the number of steps. A class is read by its own methods, too.
    """
    found: dict[Place, int] = {}
    for steps, turn in enumerate(made_of(names)):
        for unit in _reading(turn):
            if unit.place:
                found.setdefault(unit.place, steps)
    return found


def with_notes(places: Iterable[Place]) -> dict[str, CodeType]:
    """The modules with a call at each place, by name; the number of a place is its index."""
    there: dict[str, dict[ast.stmt, int]] = defaultdict(dict)
    for number, (file, statement) in enumerate(places):
        there[file][statement] = number
    made = {}
    for file, numbers in there.items():
        memo: dict[int, object] = {}  # the nodes of the copy that stand for those of the tree
        tree = copy.deepcopy(tree_of(file), memo)
        calls = {
            id(memo[id(statement)]): ast.parse(f"mutants_notes.reached({number})").body[0]
            for statement, number in numbers.items()
        }
        for node in ast.walk(tree):
            for _, value in ast.iter_fields(node):
                for one in [*value] if isinstance(value, list) else ():
                    if call := calls.get(id(one)):
                        ast.fix_missing_locations(ast.copy_location(call, one))
                        value.insert(value.index(one), call)
        made[module_of(file)] = compile(tree, str(ROOT / file), "exec", dont_inherit=True)
    return made
