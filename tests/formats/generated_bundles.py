"""Random bundles with names and kinds of files that some system cannot store, what must become of
them, and their forms and archives in the ways that programs write them, and damaged ones.

What is drawn is labelled as fine or odd where it is made: nothing here asks the code under test.
"""

from __future__ import annotations

import io
import struct
import tarfile
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from hypothesis import strategies as st

from tests.kit.raw_archives import RawZip, deflated, file_part, form_of, part, text_part

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

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

_ODD_CONTENTS = (b"", PROGRAM, b"\x7fELF\0", b"PK\3\4", b"\r\n------ferr--\r\n", bytes(70_000))
contents = st.binary(max_size=200) | st.sampled_from(_ODD_CONTENTS)
_texts = st.text(_LETTERS, max_size=8).map(lambda text: f"{text}x")
fine_components = st.sampled_from(FINE) | _texts
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


# ---------------------------------------------------------------------------- as they are sent

_FIELDS: Final = text_part("user_id", "1"), text_part("service", "example")
_TAR_KINDS: Final = {
    "file": tarfile.REGTYPE,
    "contiguous": tarfile.CONTTYPE,
    "folder": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "FIFO": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
    "disk": tarfile.BLKTYPE,
    "sparse file": tarfile.GNUTYPE_SPARSE,
    "part of a file": b"M",
    "label": b"V",
    "dump": b"D",
    "unknown": b"Z",
}
TAR_KINDS: Final = tuple(kind for kind in _TAR_KINDS if kind not in {"file", "contiguous"})
_ZIP_MODES = {"folder": 0o040755, "symlink": 0o120777, "FIFO": 0o010644}
_ZIP_MODES |= {"device": 0o020644, "socket": 0o140755}
_ZIP_LIES: Final[dict[str, dict[str, int | bytes]]] = {
    "encrypted": {"flags": 0x801},
    "bzip2": {"method": 12},
    "bad checksum": {"crc": 12345},
    "longer than declared": {"size": 1},
}
ZIP_KINDS: Final = (*_ZIP_MODES, *_ZIP_LIES)


def filename(one: Item, *, extended: bool) -> bytes:
    """A file name as browsers quote it, or as RFC 5987 does."""
    if extended or b"%" in one.raw:
        return b"filename*=UTF-8''" + quote(one.raw, safe="").encode()
    quoted = one.raw.replace(b"\\", b"\\\\").replace(b'"', b"%22")
    return b'filename="' + quoted.replace(b"\r", b"%0D").replace(b"\n", b"%0A") + b'"'


def parts(bundle: Sequence[Item], *, extended: bool) -> bytes:
    """Every file a part of the form."""
    named = ((b'name="files"; ' + filename(one, extended=extended), one) for one in bundle)
    return form_of(*_FIELDS, *(part(name, one.content) for name, one in named))


def archived(name: str, archive: bytes) -> bytes:
    """One archive, to be expanded."""
    return form_of(*_FIELDS, file_part(name, archive, "bundle"))


def zipped(bundle: Sequence[Item], choose: Callable[[int], int]) -> bytes:
    """A ZIP, each entry in one of the ways that are read.

    Args:
        choose: a number below the given one, for each decision.
    """
    archive = RawZip()
    for one in bundle:
        raw, content = one.raw, one.content
        if one.kind in _ZIP_LIES:
            archive.add(raw, b"", **_ZIP_LIES[one.kind])  # type: ignore[arg-type]
            continue
        more: dict[str, int | bytes] = {"flags": 0x800 if choose(2) else 0}
        if one.kind == "folder":
            raw += b"/"
        permissions = 0o755 if one.executable else 0o644
        more["mode"] = _ZIP_MODES.get(one.kind, 0o100000 | permissions)
        if one.kind == "file" and choose(8) == 0:
            more["mode"] = 0o755 if one.executable else 0  # of a system without kinds
        packed = content
        if choose(2):
            more["method"], packed = 8, deflated(content)
            more["packed"] = packed
        way = choose(6)
        if way == 0:  # streamed: the sizes come behind, with a signature or without
            more["flags"] = int(more["flags"]) | 8
            sizes = struct.pack("<3L", zlib.crc32(content), len(packed), len(content))
            more["behind"] = (b"PK\7\x08" if choose(2) else b"") + sizes
        elif way == 1:  # ZIP64, though it need not be
            more["size"] = more["local_size"] = 0xFFFF_FFFF
            more["crc"] = zlib.crc32(content)
            more["extra"] = struct.pack("<2HQ", 1, 8, len(content))
        archive.add(raw, content, **more)  # type: ignore[arg-type]
    return archive.bytes(comment=b"a comment" if choose(2) else b"")


def tarred(bundle: Sequence[Item], *, gnu: bool, mode: str, prefix: str = "") -> bytes:
    """A tar file with long names and odd bytes as GNU tar or as POSIX (pax) writes them.

    Args:
        prefix: ``./``, as ``tar .`` writes it.
    """
    out = io.BytesIO()
    form = tarfile.GNU_FORMAT if gnu else tarfile.PAX_FORMAT
    with tarfile.open(  # type: ignore[call-overload]
        fileobj=out, mode=mode, format=form, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for number, one in enumerate(bundle):
            info = tarfile.TarInfo(prefix + one.name)
            kind = "contiguous" if one.kind == "file" and number % 5 == 4 else one.kind
            info.type = _TAR_KINDS[kind]
            info.mode = 0o755 if one.executable else 0o644
            if kind in {"symlink", "hard link"}:
                info.linkname = "/etc/passwd"
            info.size = len(one.content)
            archive.addfile(info, io.BytesIO(one.content))
    return out.getvalue()


def damaged(data: bytes, chance: Random) -> bytes:
    """The same with a few bytes changed, repeated, added or missing."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found))
        length = chance.choice([1, 2, 4, 30, 600])
        match chance.choice(["flip", "flip", "set", "cut", "insert", "repeat", "drop"]):
            case "flip":
                found[at] ^= 1 << chance.randrange(8)
            case "set":
                found[at : at + 4] = chance.choice([bytes(4), b"\xff" * 4, b"PK\3\4", b"\r\n--"])
            case "cut":
                del found[max(1, at) :]
            case "insert":
                found[at:at] = chance.randbytes(length)
            case "repeat":
                found[at:at] = found[at : at + length]
            case "drop":
                del found[at : at + length]
        found = found or bytearray(b"x")
    return bytes(found)
