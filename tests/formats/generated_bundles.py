"""Random bundles with names and kinds of files that some system cannot store, and what must become
of them.

What is drawn is labelled as fine or odd where it is made: nothing here asks the code under test.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st

RUN: Final = "run.sh"
PROGRAM: Final = b"#!/bin/bash\n"

FINE: Final = (
    *("-rf", "--help", " leading", "~", "$(id)", "`id`", "a;b", "*", "[a]", "'q'", '"q"', "{}"),
    *("%41", "%", "%2Fx", "a=b", "#x", "e\u0301", "\u00e9", "\u212b", "\ufb01", "\U0001f600"),
    *("a\ufe0f", "\u0301x", "\ue000", "console", "com10", "Run.sh", ".hidden", "..x", "x" * 255),
    *("é" * 127, "stdout.log", "STDERR.log", "ferryman.json", "Data", "data", "run.sh.bak", "d"),
    *("STRASSE", "stra\u00dfe", "\u03a3", "\u03c2", "a b", "x.txt", "x.TXT", "i\u0307", "tool.sh"),
    *("a.", "a ", "...", " ", "CON", "con.txt", "NUL", "aux.x.y", "LPT1", "COM\u00b9", "CONIN$"),
    *("C:", "a:b", "chr1:1-2.bed", "aux.h", "what?", "<b>", "a|b"),
)
"""Components that Linux can store; other systems perhaps not."""
ODD: Final = (
    *(".", "..", "a\nb", "a\rb", "tab\t", "\x1b[31mred", "\x7f", "\x85", "a\u202eb", "\u200b"),
    *("\ufeffa", "a\u2028b", "\u2029", "\u2066x", "a\\b", "..\\..\\x", "x" * 256),
    *("é" * 128, "\udcff", "a\udce9b", "\udced\udca0\udc80", "\udcc0\udcaf", "\udcc0\udc80"),
)
"""Components that are dangerous, or that Linux cannot store."""
_LETTERS: Final = "abzABZ09_+=,@#~^&;$()[]{}!'é漢ßñΩя\u0301\u0308 -"

contents = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [b"", PROGRAM, b"\x7fELF\0", b"PK\3\4", b"\r\n------ferr--\r\n", bytes(70_000)]
    ),
)
fine_components = st.one_of(
    st.sampled_from(FINE), st.text(_LETTERS, max_size=8).map(lambda text: f"{text}x")
)
odd_components = st.sampled_from(ODD)


@dataclass(frozen=True)
class Item:
    """Something that is uploaded."""

    name: str
    """Bytes that are no UTF-8 as surrogates, as Python shows them."""
    content: bytes = b""
    kind: str = "file"
    executable: bool = False
    """As an archive says."""
    odd: bool = False
    """Must be refused for what it is, whatever lies beside it."""

    @property
    def raw(self) -> bytes:
        return self.name.encode("utf-8", "surrogateescape")

    @property
    def sent(self) -> str:
        """As a refusal calls it."""
        return self.raw.decode("utf-8", "backslashreplace")

    @property
    def program(self) -> bool:
        return self.executable or self.name.endswith(".sh") or self.content[:2] in {b"#!", b"\x7fE"}


@st.composite
def paths(draw: st.DrawFn, *, odd: bool) -> tuple[str, bool]:
    """A path, and whether it must be refused."""
    shape = draw(st.sampled_from(["plain"] * 6 + ["deep", "long"] + ["absolute"] * odd))
    bad = False
    if shape == "deep":
        parts = ["d"] * draw(st.integers(60, 64 + 3 * odd))
    elif shape == "long":
        parts = ["x" * 200] * 4 + ["y" * draw(st.integers(150, 220 + 60 * odd))]
    else:
        parts = draw(st.lists(fine_components, min_size=1, max_size=4))
        if odd and draw(st.booleans()):
            at = draw(st.integers(0, len(parts) - 1))
            parts[at] = draw(odd_components)
            if parts[0] == ".":  # an archive may begin all its names so
                parts[0] = ".."
            bad = True
    if odd and draw(st.integers(0, 7)) == 0:
        at = draw(st.integers(1, len(parts)))
        parts[at:] = [draw(st.sampled_from(["", ".", ".."])), *parts[at:], "x"]
        bad = True
    path = "/".join(parts)
    if shape == "absolute":
        return f"/{path}", True
    return path, bad


@st.composite
def items(draw: st.DrawFn, *, kinds: Sequence[str] = (), odd: bool | None = None) -> list[Item]:
    """A bundle: ``run.sh`` and other things, in any order; perhaps all in one folder.

    Args:
        kinds: what else than files there may be; all but "folder" must be refused.
        odd: whether there may be anything that must be refused; None: sometimes.
    """
    if odd is None:
        odd = draw(st.booleans())
    found = [Item(RUN, draw(st.sampled_from([b"", PROGRAM])))]
    for _ in range(draw(st.integers(0, 5))):
        path, bad = draw(paths(odd=odd))
        kind = draw(st.sampled_from(["file"] * 9 + [*(kinds if odd else set(kinds) & {"folder"})]))
        content = draw(contents) if kind == "file" else b""
        bad = bad or kind not in {"file", "folder"}
        found.append(Item(path, content, kind, draw(st.booleans()), bad))
    found = draw(st.permutations(found))
    if draw(st.integers(0, 3)) == 0:
        found = [replace(one, name=f"top folder/{one.name}") for one in found]
    return found


def faults(kinds: Sequence[str], *, archive: bool) -> Iterator[tuple[Item, ...]]:
    """Everything that must be refused, one by one.

    Args:
        kinds: as of :func:`items`.
        archive: whether names may begin with ``./``.
    """
    for component in ODD:
        if component != "." or not archive:
            yield (Item(component, odd=True),)
        yield (Item(f"folder/{component}", odd=True),)
        yield (Item(f"folder/{component}/file", odd=True),)
    for name in ("/etc/passwd", "//x", "a//b"):
        yield (Item(name, odd=True),)
    yield (Item("/".join(["d"] * 65)),)
    yield (Item("/".join(["x" * 200] * 6)),)
    yield (Item("/".join(["\U0001d160" * 21] * 5)),)  # too long once it is composed
    for name in ("run.sh", "run.sh/x"):
        yield (Item(name),)
    for one, other in (("e\u0301", "\u00e9"), ("f", "f/g/h"), ("\u212b/x", "\u00c5/x")):
        yield Item(one), Item(other)
        yield Item(other), Item(one)
    for kind in kinds:
        if kind != "folder":
            yield (Item("odd-kind", b"", kind, odd=True),)
            yield (Item("run.sh.d/odd-kind", b"", kind, odd=True),)


# ---------------------------------------------------------------------------- what must come of it


def composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def clash(one: str, other: str, folders: tuple[bool, bool]) -> bool:
    """Whether two composed paths cannot lie side by side."""
    first, second = one.split("/"), other.split("/")
    for depth, (a, b) in enumerate(zip(first, second, strict=False), start=1):
        if a != b:
            return False
        if depth == len(first) and not folders[0]:
            return True
        if depth == len(second) and not folders[1]:
            return True
    return False


def at_fault(bundle: Sequence[Item]) -> Iterator[Item]:
    """Those that a refusal may name; none: it must be taken."""
    for number, one in enumerate(bundle):
        path = composed(one.name)
        if (
            one.odd
            or path.count("/") >= 64
            or len(path.encode("utf-8", "replace")) > 1024
            or any(
                clash(path, composed(other.name), (one.kind == "folder", other.kind == "folder"))
                for at, other in enumerate(bundle)
                if at != number
            )
        ):
            yield one


def expected(bundle: Sequence[Item]) -> dict[str, Item]:
    """Path in the job's directory -> what lies there."""
    found = {composed(one.name): one for one in bundle if one.kind == "file"}
    if RUN in found:
        return found
    return {path.partition("/")[2]: one for path, one in found.items()}
