"""A part of a file is read like a file of its own."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from server.maintenance.files import open_section


def test_nothing_outside_the_section_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"beforeINSIDEafter")
    with open_section(tmp_path / "file", 6, 6) as section:
        assert section.read() == b"INSIDE"
        assert section.seek(-3, os.SEEK_END) == 3
        assert section.read(2) == b"ID"
        assert section.seek(-1, os.SEEK_CUR) == 4
        assert section.read(100) == b"DE"
        assert section.seek(60) == 60
        assert section.read() == b""
        with pytest.raises(ValueError, match="before the beginning"):
            section.seek(-7, os.SEEK_END)
    with open_section(tmp_path / "file", 12, 50) as cut:
        assert cut.read() == b"after"
    with open_section(tmp_path / "file", 50, 5) as none:
        assert none.read() == b""


def test_each_of_several_archives_in_one_file_is_read(tmp_path: Path) -> None:
    sections = []
    with (tmp_path / "file").open("wb") as file:
        for number in range(3):
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                archive.writestr(f"{number}.txt", f"text {number}")
            sections.append((file.tell(), len(packed.getvalue())))
            file.write(packed.getvalue())
    for number, (start, size) in enumerate(sections):
        section = open_section(tmp_path / "file", start, size)
        with section, zipfile.ZipFile(section) as archive:
            assert archive.namelist() == [f"{number}.txt"]
            assert archive.read(f"{number}.txt") == f"text {number}".encode()
