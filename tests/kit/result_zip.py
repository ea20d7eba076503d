"""The files in a downloaded result."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path

from tests.kit import desktop_zip


class Result:
    """What is in the ZIP of a job that ran, the agent's own files apart; checked to be portable.

    Attributes:
        files: path -> content.
        folders: empty ones.
        modes: path -> permissions.
        receipt: the document in ``ferryman.json``.
        stdout: what the job wrote there.
        skipped: path as it is shown -> why.
    """

    def __init__(self, data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            desktop_zip.check(Path(file.name))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            held = {info.filename: archive.read(info) for info in infos}
        assert len(held) == len(infos), "two entries have one name"
        self.receipt = json.loads(held[infos[-1].filename])
        of_agent = {infos[-1].filename, *self.receipt["logs"].values()}
        self.stdout = held[self.receipt["logs"]["stdout"]]
        of_job = [info for info in infos if info.filename not in of_agent]
        self.files = {i.filename: held[i.filename] for i in of_job if not i.is_dir()}
        self.folders = {info.filename[:-1] for info in of_job if info.is_dir()}
        self.modes = {i.filename: i.external_attr >> 16 & 0o7777 for i in of_job if not i.is_dir()}
        self.skipped = {one["path"]: one["why"] for one in self.receipt["skipped"]}
        assert self.receipt["files"] == len(self.files)
        assert self.receipt["bytes"] == sum(map(len, self.files.values()))
