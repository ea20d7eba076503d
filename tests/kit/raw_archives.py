"""Bundles, archives and forms, made field by field so that they can also be wrong."""

from __future__ import annotations

import io
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shared.files.bundles.expand import expand
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.reader import BundleReader
from shared.files.bundles.writer import BundleWriter
from shared.files.names import BundleError

Files = Mapping[str, bytes]

# ---------------------------------------------------------------------------- bundles


def write_bundle(path: Path, files: Files) -> BundleSummary:
    writer = BundleWriter(path, max_files=10_000, max_bytes=1 << 30)
    try:
        for name, content in files.items():
            writer.add(name)
            for at in range(0, len(content), 1 << 20):
                writer.write(content[at : at + (1 << 20)])
            writer.end()
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def unpacked(bundle: Path, into: Path, **how: Any) -> dict[str, bytes]:
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    fd = os.open(into, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with BundleReader(bundle) as reader:
            reader.unpack(fd, **how)
    finally:
        os.close(fd)
    return on_disk(into)


def on_disk(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def expand_bytes(
    archive: bytes,
    folder: Path,
    name: str = "bundle.zip",
    *,
    max_files: int = 1000,
    max_bytes: int = 64 << 20,
) -> BundleSummary:
    """Expand into ``folder/bundle``; on refusal nothing but the archive is left there."""
    stored = folder / "archive"
    stored.write_bytes(archive)
    (folder / "bundle").unlink(missing_ok=True)
    writer = BundleWriter(folder / "bundle", max_files=max_files, max_bytes=max_bytes)
    try:
        expand(stored, name, writer, max_files=max_files, max_bytes=max_bytes)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def refusal(
    archive: bytes, folder: Path, *, max_files: int = 1000, max_bytes: int = 64 << 20
) -> BundleError:
    """The refusal, after which nothing is left."""
    with pytest.raises(BundleError) as caught:
        expand_bytes(archive, folder, max_files=max_files, max_bytes=max_bytes)
    assert [path.name for path in folder.iterdir()] == ["archive"]
    assert caught.value.part is not None
    assert caught.value.message.startswith("“")
    return caught.value


# ---------------------------------------------------------------------------- archives


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def unzipped(data: bytes) -> dict[str, bytes]:
    """Of a ZIP that is sound."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def tarred(files: Files, mode: str = "w") -> bytes:
    found = files.items()
    return tar_of([(member(name, size=len(content)), content) for name, content in found], mode)


def member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(None, mode, out, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


class RawZip:
    """A ZIP put together by hand, so that every field can lie."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.directory = bytearray()
        self.count = 0

    def add(  # the fields of a header are what they are
        self,
        name: bytes,
        content: bytes,
        *,
        method: int = 0,
        flags: int = 0x800,
        packed: bytes | None = None,
        size: int | None = None,
        crc: int | None = None,
        local_name: bytes | None = None,
        local_size: int | None = None,
        local_method: int | None = None,
        mode: int = 0o100644,
        extra: bytes = b"",
        behind: bytes = b"",
        offset: int | None = None,
    ) -> RawZip:
        data = content if packed is None else packed
        size = len(content) if size is None else size
        crc = zlib.crc32(content) if crc is None else crc
        local_name = name if local_name is None else local_name
        at = len(self.body) if offset is None else offset
        if offset is None:
            self.body += struct.pack(
                "<4s5H3L2H", b"PK\3\4", 20, flags, method if local_method is None else local_method,
                0, 33, crc, len(data), size if local_size is None else local_size,
                len(local_name), len(extra),
            )  # fmt: skip
            self.body += local_name + extra + data + behind
        self.count += 1
        self.directory += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20 | 3 << 8, 20, flags, method, 0, 33, crc, len(data), size,
            len(name), len(extra), 0, 0, 0, mode << 16, at,
        )  # fmt: skip
        self.directory += name + extra
        return self

    def bytes(
        self, *, count: int | None = None, comment: bytes = b"", start: int | None = None
    ) -> bytes:
        count = self.count if count is None else count
        start = len(self.body) if start is None else start
        end = struct.pack(
            "<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(self.directory), start, len(comment)
        )
        return bytes(self.body + self.directory) + end + comment


def deflated(content: bytes) -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return engine.compress(content) + engine.flush()


# ---------------------------------------------------------------------------- forms

BOUNDARY = "----ferry"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def part(disposition: str | bytes, content: bytes = b"", *headers: bytes) -> bytes:
    """One part with the boundary before it; ``disposition``: its parameters."""
    if isinstance(disposition, str):
        disposition = disposition.encode()
    lines = [b"Content-Disposition: form-data; " + disposition, *headers]
    head = b"--" + BOUNDARY.encode() + b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"
    return head + content + b"\r\n"


def file_part(name: str, content: bytes = b"", field: str = "files") -> bytes:
    return part(f'name="{field}"; filename="{name}"', content)


def text_part(name: str, value: str | bytes) -> bytes:
    return part(f'name="{name}"', value.encode() if isinstance(value, str) else value)


def form_of(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY.encode() + b"--\r\n"


async def in_pieces(body: bytes, length: int = 65_536) -> AsyncIterator[bytes]:
    for at in range(0, len(body), length):
        yield body[at : at + length]
