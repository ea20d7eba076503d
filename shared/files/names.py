"""Which file names are refused, and why.

A name is refused if it is dangerous or impossible on the compute host, or if it hides what it is.
Names that Linux can store and other systems cannot are the subject of
:mod:`shared.files.names`. Names are never changed, with one exception: they are composed (NFC),
because macOS sends decomposed names.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

MAX_COMPONENT_BYTES: Final = 255
"""Of one component in UTF-8: NAME_MAX of Linux file systems."""
MAX_PATH_BYTES: Final = 1024
"""Of a whole path in UTF-8: macOS stops at 1024, and Linux's 4096 include the folders above."""
MAX_DEPTH: Final = 64
"""Components of a path: a bundle can be walked with one descriptor per level."""
_MAX_MARKS: Final = 30
"""Combining characters in a row, as in Unicode's Stream-Safe Text Format: composing a name takes
time that grows with the square of such a run."""

_REFUSED_CATEGORIES: Final = {
    "Cc": "a control character",
    "Cf": "an invisible format character",
    "Cs": "half of a surrogate pair",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")


class UnsafeName(ValueError):
    """A name that is refused.

    Attributes:
        name: as it was given; use :func:`shown` before anybody sees it.
        why: the reason, a phrase such as ``it is an absolute path``.
        code: ``unsafe_name``, ``duplicate_name`` or ``file_and_folder``; where names have to be
            portable, ``case_clash``, too.
    """

    def __init__(self, name: str, why: str, code: str = "unsafe_name") -> None:
        super().__init__(f"the name {shown(name)} cannot be used: {why}")
        self.name, self.why, self.code = name, why, code


def shown(name: str, limit: int = 120) -> str:
    """``name`` in quotes, safe to print: invisible characters escaped, long names cut."""
    text = "".join(
        c if unicodedata.category(c) not in _REFUSED_CATEGORIES and c != "\\" else _escaped(c)
        for c in (name if len(name) <= limit else name[: limit // 2] + "…" + name[-limit // 2 :])
    )
    return f"“{text}”"


def _escaped(c: str) -> str:
    return "\\\\" if c == "\\" else c.encode("unicode_escape", "surrogatepass").decode("ascii")


def safe_path(name: str) -> str:
    """The relative POSIX path that ``name`` stands for, in NFC.

    Raises:
        UnsafeName: absolute; ``.``, ``..`` or empty components; control, format or bidirectional
            characters; backslash; not encodable as UTF-8; too long or too deep.
    """
    # The length is checked first, because the time of the other checks grows with it. Composing
    # can halve the length of a name.
    if len(name) > 2 * MAX_PATH_BYTES:
        raise _too_long(name)
    # Most names are plain ASCII, and a bundle may have thousands: one match decides those.
    if not _PLAIN.fullmatch(name):
        _check_characters(name)
        name = unicodedata.normalize("NFC", name)
    if len(name) > MAX_PATH_BYTES or len(name.encode()) > MAX_PATH_BYTES:
        raise _too_long(name)
    components = name.split("/")
    if len(components) > MAX_DEPTH:
        raise UnsafeName(name, f"it is nested deeper than {MAX_DEPTH} folders")
    for component in components:
        _check_component(name, component)
    return name


def _too_long(name: str) -> UnsafeName:
    return UnsafeName(name, f"it is longer than {MAX_PATH_BYTES} bytes")


def _check_characters(name: str) -> None:
    if not name:
        raise UnsafeName(name, "it is empty")
    if name.startswith("/"):
        raise UnsafeName(name, "it is an absolute path")
    marks = 0
    for c in name:
        if c == "\0":
            raise UnsafeName(name, "it contains a NUL character")
        if c == "\\":
            raise UnsafeName(name, "it contains a backslash; folders are separated by /")
        if refused := _REFUSED_CATEGORIES.get(unicodedata.category(c)):
            raise UnsafeName(name, f"it contains {refused} (U+{ord(c):04X})")
        marks = marks + 1 if unicodedata.combining(c) else 0
        if marks > _MAX_MARKS:
            raise UnsafeName(name, f"it has more than {_MAX_MARKS} combining marks in a row")


def _check_component(name: str, component: str) -> None:
    if not component:
        raise UnsafeName(name, "it has an empty component")
    if component in {".", ".."}:
        raise UnsafeName(name, f"it contains the component {component!r}")
    if len(component) > MAX_COMPONENT_BYTES or len(component.encode()) > MAX_COMPONENT_BYTES:
        raise UnsafeName(name, f"a component is longer than {MAX_COMPONENT_BYTES} bytes")


class PathSet:
    """Paths that will be stored in one tree: ``add`` them, then ``check``.

    Keeps a reference to each path and nothing more, however deep the paths are.
    """

    def __init__(self) -> None:
        self._paths: dict[
            str, int
        ] = {}  # path, with a slash after a folder -> number in the order of adding

    def add(self, path: str) -> None:
        """Add a file.

        Args:
            path: as :func:`safe_path` returns it.

        Raises:
            UnsafeName: it is there already.
        """
        if path in self._paths:
            raise UnsafeName(path, "it is there twice", "duplicate_name")
        self._paths[path] = len(self._paths)

    def add_folder(self, path: str) -> None:
        """Add a folder; repeats are harmless."""
        self._paths.setdefault(f"{path}/", len(self._paths))

    def check(self) -> None:
        """Check the paths against each other, once all are added.

        Raises:
            UnsafeName: a path would have to be a file and a folder; names the one added later.
        """
        # Slashes are sorted as NUL, the least character, which no path has. So what lies below a
        # path follows it directly.
        ordered = sorted(self._paths, key=lambda path: path.replace("/", "\0"))
        for file, other in itertools.pairwise(ordered):
            if file[-1] == "/" or not other.startswith(f"{file}/"):
                continue
            if self._paths[file] > self._paths[other]:
                raise UnsafeName(file, "there is a folder of that name", "file_and_folder")
            why = f"{shown(file)} is a file, so it cannot be a folder too"
            raise UnsafeName(other.removesuffix("/"), why, "file_and_folder")


def find_root(paths: Iterable[str], entry: str = "run.sh") -> str | None:
    """The prefix that is stripped from every path, so that the entry script is at the root.

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


_EXAMPLES: Final = 3
_NOT_PORTABLE: Final = re.compile(
    r"""(?P<colon>:) | (?P<sign>[<>"|?*]) | (?P<end>[. ]) (?:/|$)
    | (?:^|/) (?P<device> (?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)
        (?:[ ]*\.[^/]*)? ) (?:/|$)""",
    re.IGNORECASE | re.VERBOSE,
)


def why_not_portable(path: str) -> str | None:
    """Why Windows cannot store a path that :func:`~shared.files.names.safe_path` took, or None."""
    match = _NOT_PORTABLE.search(path)
    if match is None:
        return None
    if match["colon"]:
        return "it contains a colon, which Windows cannot store"
    if match["sign"]:
        return f"it contains the character {match['sign']}, which Windows cannot store"
    if match["end"]:
        return "a component ends in a dot or a space, which Windows drops"
    return f"{shown(match['device'])} is the name of a device on Windows"


def fold(text: str) -> str:
    """The same for all names that a case-insensitive file system takes for one file."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFD", decomposed.casefold())


def problems(paths: Iterable[str]) -> Iterator[UnsafeName]:
    """What is not portable about the files of one tree, one problem at a time.

    Args:
        paths: as :func:`~shared.files.names.safe_path` returns them; no two are the same.
    """
    folded = []
    for number, path in enumerate(paths):
        folded.append((fold(path).replace("/", "\0"), number, path))
        if why := why_not_portable(path):
            yield UnsafeName(path, why)
    # In this order, paths that differ only in case follow each other.
    folded.sort()
    for one, other in itertools.pairwise(folded):
        earlier, later = sorted((one, other), key=lambda entry: entry[1])
        spelled, here = earlier[2].split("/"), later[2].split("/")
        same = zip(earlier[0].split("\0"), later[0].split("\0"), strict=False)
        for depth, (key, other_key) in enumerate(same):
            if key != other_key:
                break
            if spelled[depth] != here[depth]:
                first = shown("/".join(spelled[: depth + 1]))
                yield UnsafeName(later[2], f"it differs only in case from {first}", "case_clash")
                break


class NonPortableNames:
    """Counts names that are not portable, and makes one warning of bounded length of them."""

    def __init__(self) -> None:
        self._examples: list[str] = []
        self._count = 0

    def add(self, path: str, why: str) -> None:
        self._count += 1
        if len(self._examples) < _EXAMPLES:
            self._examples.append(f"{shown(path)}: {why}")

    def warnings(self) -> tuple[str, ...]:
        """One warning for the job document, or none."""
        if not self._count:
            return ()
        names = "1 name is" if self._count == 1 else f"{self._count} names are"
        more = f"; and {self._count - _EXAMPLES} more" if self._count > _EXAMPLES else ""
        examples = "; ".join(self._examples)
        return (f"portable_names: {names} not for every system ({examples}{more})",)


_MAX_PART: Final = 2048


class BundleError(Exception):
    """A bundle, or an archive that was to become one, is refused.

    Attributes:
        code: short, snake_case, stable.
        part: the file or entry at fault as its sender named it, cut where it is long, or None.
        message: a sentence for people; it names the part.
    """

    def __init__(self, code: str, message: str, part: str | None = None) -> None:
        self.code, self.part = code, cut(part)
        self.message = message if part is None else f"{shown(part)}: {message}"
        super().__init__(self.message)

    @classmethod
    def of_name(cls, problem: UnsafeName, sent: str | None = None) -> BundleError:
        """The refusal of a name; ``sent``: the name before it was normalised."""
        return cls(problem.code, problem.why, problem.name if sent is None else sent)


def cut(part: str | None) -> str | None:
    """The name, cut for an answer: a refused name may be a megabyte long."""
    return part if part is None or len(part) <= _MAX_PART else f"{part[:_MAX_PART]}…"
