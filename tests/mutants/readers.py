"""Which functions use what a module defines at its import: constants, tables, classes."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutants.trees import FUNCTIONS, Function, functions

ROOT: Final = Path(__file__).resolve().parents[2]
CHANGED: Final = ("server", "client_agent", "shared", "ferryman", "tests/mutants/sample")


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def file_of(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}.py" if (ROOT / f"{path}.py").is_file() else f"{path}/__init__.py"


@functools.cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@dataclass(frozen=True, slots=True)
class Unit:
    """A function, or a statement that runs at the import."""

    file: str
    names: frozenset[str]
    """What it reads: ``NAME``, ``alias.NAME``."""
    defines: frozenset[str] = frozenset()
    function: Function | None = None
    qualname: str = ""


@dataclass
class Index:
    units: list[Unit] = field(default_factory=list)
    readers: dict[tuple[str, str], list[Unit]] = field(default_factory=lambda: defaultdict(list))
    """By file and what is read."""
    imports: dict[tuple[str, str], list[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By module and name: the files that import it, and as what."""


def _loads(nodes: Iterable[ast.AST | None]) -> Iterator[str]:
    for top in filter(None, nodes):
        for node in ast.walk(top):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield f"{node.value.id}.{node.attr}"


def targets(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds."""
    for one in ast.walk(node):
        if isinstance(one, Function | ast.ClassDef):
            yield one.name
        elif isinstance(one, ast.Assign):
            yield from (name.id for name in one.targets if isinstance(name, ast.Name))
        elif isinstance(one, ast.AnnAssign | ast.AugAssign) and isinstance(one.target, ast.Name):
            yield one.target.id


def units_of(file: str) -> Iterator[Unit]:
    tree = tree_of(file)
    for name, function in functions(tree.body):
        yield Unit(file, frozenset(_loads(function.body)), frozenset(), function, name)
    for node in tree.body:
        if isinstance(node, FUNCTIONS):
            heads = (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
            yield Unit(file, frozenset(_loads(heads)), frozenset({node.name}))
        elif isinstance(node, ast.ClassDef):
            of_class = (*node.bases, *node.decorator_list, *_own(node))
            yield Unit(file, frozenset(_loads(of_class)), frozenset({node.name}))
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            yield Unit(file, frozenset(_loads([node])), frozenset(targets(node)))


def _own(node: ast.ClassDef) -> Iterator[ast.AST | None]:
    for one in node.body:
        if isinstance(one, FUNCTIONS):
            yield from (*one.decorator_list, *one.args.defaults, *one.args.kw_defaults)
        elif isinstance(one, ast.ClassDef):
            yield from _own(one)
        else:
            yield one


@functools.cache
def index() -> Index:
    made = Index()
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *CHANGED]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in listed.splitlines():
        if not file.endswith(".py") or not (ROOT / file).is_file():
            continue
        for unit in units_of(file):
            made.units.append(unit)
            for name in unit.names:
                made.readers[file, name].append(unit)
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    made.imports[node.module, one.name].append((file, one.asname or one.name))
    return made


def readers(file: str, names: Iterable[str]) -> Iterator[tuple[int, Unit]]:
    """The functions that read the names, directly or through constants and classes made of them,
    each with the number of steps. A class that changes is read by its own methods, too.
    """
    made = index()
    seen: set[tuple[str, str]] = set()
    told: set[tuple[str, str]] = set()
    turn = {(file, name) for name in names}
    steps = 0
    while turn:
        seen |= turn
        coming: set[tuple[str, str]] = set()
        for where, name in turn:
            for unit in made.units:
                of_class = unit.file == where and unit.qualname.startswith(f"{name}.")
                if of_class and unit.function and (where, unit.qualname) not in told:
                    told.add((where, unit.qualname))
                    yield steps, unit
            here = [(where, name)]
            here += made.imports[module_of(where), name]
            package, _, last = module_of(where).rpartition(".")
            here += [(user, f"{alias}.{name}") for user, alias in made.imports[package, last]]
            for user, alias in here:
                coming |= {(user, alias)} if user != where and "." not in alias else set()
                for unit in made.readers[user, alias]:
                    if unit.function is None:
                        coming |= {(user, one) for one in unit.defines}
                    elif (user, unit.qualname) not in told:
                        told.add((user, unit.qualname))
                        yield steps, unit
        turn = coming - seen
        steps += 1
