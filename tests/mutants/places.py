"""Where a test must come by to notice a change: a statement of a function, or, for what runs at the
import, the functions that read what is made there.
"""

import ast
import copy
import functools
import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CHANGED: Final = ("server", "client_agent", "shared", "ferryman", "tests/mutants/sample")
STEPS: Final = 3
"""So many tables and classes may be between a constant and the function that reads it."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, str]
"""A file, and ``qualname:digest`` of a statement in a function, or ``qualname:`` for its first."""


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

    @property
    def place(self) -> str:
        """Stays the same while the statement does, wherever it moves to in its function."""
        digest = hashlib.sha1(ast.dump(self.statement).encode(), usedforsecurity=False)
        return f"{self.function}:{digest.hexdigest()[:8]}"


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


@dataclass(frozen=True, slots=True)
class _Unit:
    """A function, or a statement that runs at the import."""

    file: str
    qualname: str
    """"" for a statement."""
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
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *CHANGED]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    made = []
    for file in listed.splitlines():
        if not file.endswith(".py") or not (ROOT / file).is_file():
            continue
        body = tree_of(file).body
        for name, function in functions(body):
            made.append(_Unit(file, name, _loads(function.body), frozenset()))
        for node in body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                bound = {node.name} if hasattr(node, "name") else {*targets(node)}
                made.append(_Unit(file, "", _loads(_head(node)), frozenset(bound)))
    return made


def readers(names: Iterable[str]) -> dict[Place, int]:
    """The functions that read these names, directly or through constants and classes made of them,
    each with the number of steps. A class is read by its own methods, too.
    """
    found: dict[Place, int] = {}
    turn, seen = {*names}, set[str]()
    for steps in range(STEPS):
        seen |= turn
        coming = set[str]()
        for unit in _units():
            if unit.loads.isdisjoint(turn) and unit.qualname.partition(".")[0] not in turn:
                continue
            if unit.qualname:
                found.setdefault((unit.file, f"{unit.qualname}:"), steps)
            else:
                coming |= unit.defines
        turn = coming - seen
    return found


def with_notes(
    places: Sequence[Place], statements: Mapping[Place, ast.stmt]
) -> dict[str, CodeType]:
    """The modules with a call at each place, by name; the number of a place is its index."""
    there: dict[str, dict[int, ast.stmt]] = defaultdict(dict)
    for number, (file, place) in enumerate(places):
        statement = statements.get((file, place))
        there[file][number] = statement or _first_of(file, place.removesuffix(":"))
    made = {}
    for file, some in there.items():
        memo: dict[int, object] = {}  # the nodes of the copy that stand for those of the tree
        tree = copy.deepcopy(tree_of(file), memo)
        for number, statement in some.items():
            call = ast.parse(f"mutants_notes.reached({number})").body[0]
            _insert_before(tree, memo[id(statement)], call)
        made[module_of(file)] = compile(tree, str(ROOT / file), "exec", dont_inherit=True)
    return made


def _first_of(file: str, name: str) -> ast.stmt:
    body = dict(functions(tree_of(file).body))[name].body
    is_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1] if is_docstring and len(body) > 1 else body[0]


def _insert_before(tree: ast.Module, target: object, call: ast.stmt) -> None:
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and any(one is target for one in value):
                at = next(n for n, one in enumerate(value) if one is target)
                value.insert(at, ast.fix_missing_locations(ast.copy_location(call, value[at])))
                return
