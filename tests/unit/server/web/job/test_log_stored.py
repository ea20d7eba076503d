"""Reading a stored log from any place."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from server.http import logs as log_stored
from server.http.logs import States, Unpacker
from server.web.job.window import LogIndexes, LogKey
from shared.files.archives.zip_directory import ZipEntry
from shared.files.archives.zip_index import ZipIndex

_LINES = b"".join(b"%d %x\n" % (number, number * 7919) for number in range(60_000))


def packed(folder: Path, method: int) -> tuple[Path, ZipEntry]:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("first", b"x" * 1000)
        archive.writestr("log", _LINES)
    path = folder / "result.zip"
    path.write_bytes(b"before" + made.getvalue())
    fd = os.open(path, os.O_RDONLY)
    try:
        entry, _ = ZipIndex(fd, 6, len(made.getvalue())).find("log")
    finally:
        os.close(fd)
    assert entry is not None
    return path, entry


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_part_is_the_same_as_of_the_whole(tmp_path, monkeypatch, method):
    monkeypatch.setattr(log_stored, "_PACKED", 1_000)
    monkeypatch.setattr(log_stored, "_BETWEEN", 20_000)
    path, entry = packed(tmp_path, method)
    states: States = {}
    for number in range(60):
        start = number * 7_919_777 % len(_LINES)
        stop = start + number * 99_991 % (len(_LINES) - start + 1)
        pieces = list(Unpacker(path, entry, states, 5_000).read(start, stop))
        assert b"".join(pieces) == _LINES[start:stop]
    assert (len(states) > 10) == (method == zipfile.ZIP_DEFLATED)
    assert len(states) <= log_stored._STATES + 1


def test_what_was_reached_once_is_not_unpacked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(log_stored, "_BETWEEN", 20_000)
    path, entry = packed(tmp_path, zipfile.ZIP_DEFLATED)
    states: States = {}
    whole = len(list(Unpacker(path, entry, states, 5_000).read(0, len(_LINES))))
    last = list(Unpacker(path, entry, states, 5_000).read(len(_LINES) - 10, len(_LINES)))
    assert len(last) < whole / 10


def test_a_damaged_log_is_refused(tmp_path):
    path, entry = packed(tmp_path, zipfile.ZIP_DEFLATED)
    with pytest.raises(EOFError):
        list(Unpacker(path, replace(entry, packed=1000), {}).read(0, len(_LINES)))
    with path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"\xff" * 100)
    with pytest.raises(zlib.error):
        list(Unpacker(path, entry, {}).read(0, len(_LINES)))


def test_states_are_kept_of_few_logs():
    known = LogIndexes()
    keys = [LogKey(number, 1, "stdout") for number in range(9)]
    first = known.states(keys[0])
    assert known.states(keys[0]) is first
    for key in keys:
        known.states(key)
    assert known.states(keys[0]) is not first
