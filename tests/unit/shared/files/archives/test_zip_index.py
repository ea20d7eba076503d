"""The table of contents of a sealed ZIP, as lists need it."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from shared.files.archives.zip_index import ZipIndex
from shared.files.names import BundleError


def packed(path: Path, names: list[str]) -> int:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("folder/", b"")
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(name, (2026, 3, 4, 5, 6, 8))
            info.extra = b"UT\x01\x00x" if number % 2 else b""
            archive.writestr(info, b"x" * (number % 7))
    path.write_bytes(content.getvalue())
    return os.open(path, os.O_RDONLY)


def test_a_scan_finds_what_the_whole_list_has(tmp_path: Path) -> None:
    names = [f"{'long/' * (one % 9)}ü {one}" if one % 3 else f"{one}" for one in range(20_000)]
    fd = packed(tmp_path / "a.zip", names)
    try:
        index = ZipIndex(fd, 0, os.fstat(fd).st_size)
        wanted = [(one.name, one.size, one.modified) for one, _ in index.files()]
        assert [one[0] for one in wanted] == names
        assert list(index.scan()) == wanted
    finally:
        os.close(fd)


@pytest.mark.parametrize("at", [0, 28, 30])
def test_a_scan_of_a_damaged_list_ends(tmp_path: Path, at: int) -> None:
    """The signature, the length of the name, that of the extras."""
    path = tmp_path / "a.zip"
    os.close(packed(path, ["a.txt", "b.txt"]))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\1\2") + at] ^= 0x7F
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(BundleError):
            list(ZipIndex(fd, 0, len(data)).scan())
    finally:
        os.close(fd)
