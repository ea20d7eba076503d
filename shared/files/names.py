"""Which file names are accepted, and why the others are not.

A name is refused when any common system would read it as another file, hide what it is, or not be
able to store it: whoever downloads a result may sit at Windows or macOS. Nothing is ever repaired
silently but Unicode composition (NFC), because macOS sends decomposed names.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable
from typing import Final

MAX_COMPONENT_BYTES: Final = 255
"""Of one component in UTF-8: NAME_MAX of Linux file systems."""
MAX_PATH_BYTES: Final = 1024
"""Of a whole path in UTF-8: macOS stops at 1024, and Linux's 4096 include the folders above."""
MAX_DEPTH: Final = 64
"""Components of a path: a bundle can be walked with one descriptor per level."""

_ODD_CATEGORIES: Final = {
    "Cc": "a control character",
    "Cf": "an invisible format character",
    "Cs": "half of a surrogate pair",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
_RESERVED: Final = re.compile(
    r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$) *(\..*)?", re.IGNORECASE
)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")


class UnsafeName(ValueError):
    """A name that is refused.

    Attributes:
        name: as it was given; use :func:`shown` before anybody sees it.
        why: the reason, a phrase such as ``it is an absolute path``.
        code: ``unsafe_name``, ``duplicate_name``, ``case_clash`` or ``file_and_folder``.
    """

    def __init__(self, name: str, why: str, code: str = "unsafe_name") -> None:
        super().__init__(f"the name {shown(name)} cannot be used: {why}")
        self.name, self.why, self.code = name, why, code


def shown(name: str, limit: int = 120) -> str:
    """``name`` in quotes, safe to print: odd characters escaped, long ones cut in the middle."""
    text = "".join(
        c if unicodedata.category(c) not in _ODD_CATEGORIES and c != "\\" else _escaped(c)
        for c in (name if len(name) <= limit else name[: limit // 2] + "…" + name[-limit // 2 :])
    )
    return f"“{text}”"


def _escaped(c: str) -> str:
    return "\\\\" if c == "\\" else c.encode("unicode_escape", "surrogatepass").decode("ascii")


def safe_path(name: str) -> str:
    """The relative POSIX path that ``name`` stands for, in NFC.

    Raises:
        UnsafeName: absolute; ``.``, ``..`` or empty components; control, format or bidirectional
            characters; backslash or colon; not encodable as UTF-8; reserved by Windows; a component
            that ends in a dot or space; too long or too deep.
    """
    # Most names are plain, and a bundle may have thousands: decide those with one match.
    if not _PLAIN.fullmatch(name):
        _check_characters(name)
        name = unicodedata.normalize("NFC", name)
    if len(name) > MAX_PATH_BYTES or len(name.encode()) > MAX_PATH_BYTES:
        raise UnsafeName(name, f"it is longer than {MAX_PATH_BYTES} bytes")
    components = name.split("/")
    if len(components) > MAX_DEPTH:
        raise UnsafeName(name, f"it is nested deeper than {MAX_DEPTH} folders")
    for component in components:
        _check_component(name, component)
    return name


def _check_characters(name: str) -> None:
    if not name:
        raise UnsafeName(name, "it is empty")
    if name.startswith("/"):
        raise UnsafeName(name, "it is an absolute path")
    for c in name:
        if c == "\0":
            raise UnsafeName(name, "it contains a NUL character")
        if c == "\\":
            raise UnsafeName(name, "it contains a backslash; folders are separated by /")
        if c == ":":
            raise UnsafeName(name, "it contains a colon, which Windows cannot store")
        if odd := _ODD_CATEGORIES.get(unicodedata.category(c)):
            raise UnsafeName(name, f"it contains {odd} (U+{ord(c):04X})")


def _check_component(name: str, component: str) -> None:
    if not component:
        raise UnsafeName(name, "it has an empty component")
    if component in {".", ".."}:
        raise UnsafeName(name, f"it contains the component {component!r}")
    if component[-1] in ". ":
        raise UnsafeName(name, "a component ends in a dot or a space, which Windows drops")
    if len(component) > MAX_COMPONENT_BYTES or len(component.encode()) > MAX_COMPONENT_BYTES:
        raise UnsafeName(name, f"a component is longer than {MAX_COMPONENT_BYTES} bytes")
    if _RESERVED.fullmatch(component):
        raise UnsafeName(name, f"{shown(component)} is the name of a device on Windows")


def fold(component: str) -> str:
    """What two names of one file on a case-insensitive file system have in common."""
    if component.isascii():
        return component.lower()
    decomposed = unicodedata.normalize("NFD", component)
    return unicodedata.normalize("NFD", decomposed.casefold())


class Tree:
    """Paths that can lie side by side on every common file system.

    A path that is refused leaves the tree as it was. Adding paths costs time in proportion to
    their length: each component is one look-up, whatever else is there.
    """

    def __init__(self) -> None:
        # (number of the parent folder, folded component) -> (spelling, own number; 0: a file)
        self._nodes: dict[tuple[int, str], tuple[str, int]] = {}
        self._folders = 1

    def add(self, path: str) -> None:
        """Add a file.

        Args:
            path: as :func:`safe_path` returns it.

        Raises:
            UnsafeName: it is there already, differs from another only in case, or one of the two
                would have to be a folder.
        """
        self._add(path, is_folder=False)

    def add_folder(self, path: str) -> None:
        """Add a folder; repeats are harmless.

        Raises:
            UnsafeName: a file has that name, or another spelling of it is there.
        """
        self._add(path, is_folder=True)

    def _add(self, path: str, *, is_folder: bool) -> None:
        components = path.split("/")
        last = len(components) - 1
        parent = 1
        for depth, component in enumerate(components):
            key = (parent, fold(component))
            node = self._nodes.get(key)
            if node is None:
                # Nothing below a new node can clash: from here on it is safe to write.
                self._grow(key, components[depth:], is_folder=is_folder)
                return
            spelling, number = node
            if spelling != component:
                other = "/".join([*components[:depth], spelling])
                raise UnsafeName(path, f"it differs only in case from {shown(other)}", "case_clash")
            if depth < last and not number:
                file = "/".join(components[: depth + 1])
                why = f"{shown(file)} is a file, so it cannot be a folder too"
                raise UnsafeName(path, why, "file_and_folder")
            parent = number
        if is_folder and not parent:
            raise UnsafeName(path, "there is a file of that name", "file_and_folder")
        if not is_folder:
            if parent:
                raise UnsafeName(path, "there is a folder of that name", "file_and_folder")
            raise UnsafeName(path, "it is there twice", "duplicate_name")

    def _grow(self, key: tuple[int, str], components: list[str], *, is_folder: bool) -> None:
        for component, below in itertools.pairwise(components):
            self._folders += 1
            self._nodes[key] = (component, self._folders)
            key = (self._folders, fold(below))
        number = 0
        if is_folder:
            self._folders += 1
            number = self._folders
        self._nodes[key] = (components[-1], number)


def find_root(paths: Iterable[str], entry: str = "run.sh") -> str | None:
    """What stands before the entry script, and is to be stripped from every path.

    Returns:
        ``""`` where the script is at the root; ``"folder/"`` where everything lies in one top-level
        folder that holds it (a folder dropped by a browser, a zipped folder); None where there is
        none.
    """
    tops: set[str] = set()
    nested = False
    for path in paths:
        if path == entry:
            return ""
        top, slash, rest = path.partition("/")
        tops.add(top + slash)
        nested = nested or rest == entry
    return tops.pop() if len(tops) == 1 and nested else None
