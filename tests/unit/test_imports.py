"""No imports in a circle: neither between the files of a folder nor between its folders."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("server", "client_agent", "shared", "ferryman")

Imports = dict[str, set[str]]
"""Module -> the modules that it imports, for types only or not, at its top or later. The file of a
package is its ``__init__``."""


def named(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names; of ``from a import b`` both a.b and a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                yield node.module


def read(root: Path, packages: Iterable[str]) -> Imports:
    files = {named(path, root): path for top in packages for path in (root / top).rglob("*.py")}
    found: Imports = {}
    for module, path in files.items():
        names = list(imported(ast.parse(path.read_text())))
        there = {name for name in names if name in files}
        # a name that is no module comes from the file of its package
        plain = [name for name in names if name not in files and f"{name}.__init__" not in files]
        there |= {own for name in plain if (own := f"{name.rpartition('.')[0]}.__init__") in files}
        found[module] = there - {module}
    return found


def circles(imports: Imports) -> list[tuple[str, ...]]:
    """Children of one folder that import each other in a circle, one circle for each folder.

    Folders count as one: a circle between files of two folders is one of the folders.
    """
    tied: dict[str, Imports] = {}
    for module, others in imports.items():
        for other in others:
            folder, one, two = parted(module, other)
            tied.setdefault(folder, {}).setdefault(one, set()).add(two)
    return sorted(circle for edges in tied.values() if (circle := circle_of(edges)))


def parted(module: str, other: str) -> tuple[str, str, str]:
    """The folder that both are in, and what each of them is in there."""
    a, b = module.split("."), other.split(".")
    depth = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return ".".join(a[:depth]), ".".join(a[: depth + 1]), ".".join(b[: depth + 1])


def circle_of(edges: Imports) -> tuple[str, ...]:
    """Some circle, beginning with its first name; empty: there is none."""
    done: set[str] = set()
    for start in sorted(edges):
        path: list[str] = []
        open_ = [iter([start])]
        while open_:
            node = next(open_[-1], None)
            if node is None:
                open_.pop()
                if path:
                    done.add(path.pop())
            elif node in path:
                circle = path[path.index(node) :]
                first = circle.index(min(circle))
                return (*circle[first:], *circle[:first])
            elif node not in done:
                path.append(node)
                open_.append(iter(sorted(edges.get(node, ()))))
    return ()


def test_nothing_is_imported_in_a_circle() -> None:
    assert circles(read(ROOT, PACKAGES)) == []


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        ({"a.py": "from p import b", "b.py": "from p.c import x", "c.py": ""}, ()),
        ({"a.py": "from p import b", "b.py": "import p.a"}, ("p.a", "p.b")),
        (
            {
                "a.py": "if TYPE_CHECKING:\n    from p.b import B",
                "b.py": "def f():\n    from p.c import C",
                "c.py": "from p import a",
            },
            ("p.a", "p.b", "p.c"),
        ),
        (
            {"x/a.py": "import p.y.b", "y/b.py": "", "y/c.py": "import p.x.d", "x/d.py": ""},
            ("p.x", "p.y"),
        ),
        (
            {"__init__.py": "from p.a import A", "a.py": "from p import VERSION"},
            ("p.__init__", "p.a"),
        ),
    ],
)
def test_a_circle_is_found(tmp_path: Path, files: dict[str, str], circle: tuple[str, ...]) -> None:
    for name, text in files.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = circles(read(tmp_path, ["p"]))
    assert found == ([circle] if circle else [])
