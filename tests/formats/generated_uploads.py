"""Forms and archives of random bundles, in the ways that programs write them, and damaged ones."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tests.formats.generated_bundles import Item
from tests.kit.raw_archives import RawZip, deflated, file_part, form_of, part, text_part

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

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
_ZIP_MODES: Final = {
    "folder": 0o040755,
    "symlink": 0o120777,
    "FIFO": 0o010644,
    "device": 0o020644,
    "socket": 0o140755,
}
_ZIP_LIES: Final[dict[str, dict[str, int | bytes]]] = {
    "encrypted": {"flags": 0x801},
    "bzip2": {"method": 12},
    "bad checksum": {"crc": 12345},
    "longer than declared": {"size": 1},
    "two names": {"local_name": b"other"},
    "two methods": {"local_method": 8},
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
    names = (filename(one, extended=extended) for one in bundle)
    files = [
        part(b'name="files"; ' + name, one.content) for name, one in zip(names, bundle, strict=True)
    ]
    return form_of(*_FIELDS, *files)


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
