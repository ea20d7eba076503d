"""The files of other jobs that an attempt gets."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from server.agents import forms
from server.domain.errors import NoSuchJob
from server.domain.jobs import FileKind, Job, Result
from server.stages.inputs import Inputs, InputsNotMade, NoInputs
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from tests.kit.jobs import job
from tests.kit.stage_resources import resources


class Place:
    """What the stage works with: some jobs."""

    def __init__(self, folder: Path) -> None:
        numbers = count(1)
        name = ("0" * 12, lambda: f"{next(numbers):020}")
        self.staging = folder / "staging"
        self.scratch = FolderScratch(self.staging, *name)
        self.storage = FolderStorage(folder, self.scratch, *name)
        self.known: dict[int, Job] = {}
        self.inputs = Inputs(resources(jobs=self, storage=self.storage, scratch=self.scratch))

    async def get(self, job_id: int) -> Job:
        if job_id not in self.known:
            raise NoSuchJob(job_id)
        return self.known[job_id]

    async def batch(self, parent_id: int) -> None:
        """None of them is a parent."""

    async def result(self, files: Mapping[str, bytes]) -> Result:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)

        async def file() -> AsyncIterator[bytes]:
            yield out.getvalue()

        async with self.storage.pending(FileKind.RESULT) as pending:
            name = await pending.put(file())
            pending.commit()
        return Result(name, len(out.getvalue()), "")

    async def sent(self, asking: Job) -> dict[str, bytes]:
        """What the agent gets."""
        async with self.inputs.of(asking) as inputs:
            assert inputs is not None
            data = b"".join([chunk async for chunk in inputs])
            assert (inputs.size, inputs.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert not list(self.staging.iterdir())
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_result_that_is_gone_or_damaged_is_named(place: Place) -> None:
    good = await place.result({"out": b"1"})
    place.known = {
        1: job(id=1, result=None),
        2: job(id=2, result=Result("f" * 32, 10, "")),
        3: job(id=3, result=Result(good.file, good.size - 1, "")),
    }
    for number, why in (
        (1, "the result of job 1, which it was to get, is gone"),
        (2, "what it was to get below inputs/2/ cannot be used: its result is gone"),
        (3, "what it was to get below inputs/3/ cannot be used: .*cut short"),
        (4, "the result of job 4, which it was to get, is gone"),
    ):
        with pytest.raises(NoInputs, match=why):
            await place.sent(job(inputs_from=(number,)))
        assert not list(place.staging.iterdir())


async def test_a_full_disk_is_no_fault_of_the_job(place: Place) -> None:
    place.known = {1: job(id=1, result=await place.result({"out": b"1" * 1000}))}
    place.scratch._space._free = lambda: 0
    with pytest.raises(InputsNotMade, match="No space left"):
        await place.sent(job(inputs_from=(1,)))


async def test_more_files_than_an_agent_takes_are_refused_before_they_are_sent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.stages.inputs.MAX_MERGED", 1)
    place.known = {1: job(id=1, result=await place.result({"a": b"", "b": b""}))}
    with pytest.raises(NoInputs, match="have 2 files and folders, more than 1"):
        await place.sent(job(inputs_from=(1,)))


async def test_they_are_the_last_part_of_the_form(place: Place) -> None:
    place.known = {1: job(id=1, result=await place.result({"out": b"1"}))}
    async with place.inputs.of(job(inputs_from=(1,))) as inputs:
        assert inputs is not None
        form = forms.zipped("{}", _Bundle(), "xyz", inputs)
        body = b"".join([chunk async for chunk in form.chunks()])
        data = b"".join([chunk async for chunk in inputs])
    assert len(body) == form.size
    parts = body.split(b"--xyz")
    assert [part.split(b'name="')[1].split(b'"')[0] for part in parts[1:4]] == [
        b"order",
        b"bundle",
        b"inputs",
    ]
    assert parts[3].endswith(data + b"\r\n")
    assert parts[4] == b"--\r\n"


class _Bundle:
    size = 6

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"bundle"
