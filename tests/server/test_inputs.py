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
from server.domain.batch import Batch
from server.domain.errors import NoSuchJob
from server.domain.jobs import FileKind, Job, Result
from server.stages.inputs import Inputs, InputsNotMade, NoInputs
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from tests.kit.jobs import job
from tests.kit.stage_resources import resources


class Place:
    """What the stage works with: some jobs, and some batches with their children's results."""

    def __init__(self, folder: Path) -> None:
        numbers = count(1)
        name = ("0" * 12, lambda: f"{next(numbers):020}")
        self.staging = folder / "staging"
        self.scratch = FolderScratch(self.staging, *name)
        self.storage = FolderStorage(folder, self.scratch, *name)
        self.known: dict[int, Job] = {}
        self.batches: dict[int, Batch] = {}
        self.children: dict[int, list[tuple[str, Result | None]]] = {}
        self.inputs = Inputs(resources(jobs=self, storage=self.storage, scratch=self.scratch))

    async def get(self, job_id: int) -> Job:
        if job_id not in self.known:
            raise NoSuchJob(job_id)
        return self.known[job_id]

    async def batch(self, parent_id: int) -> Batch | None:
        return self.batches.get(parent_id)

    async def child_results(self, parent_id: int) -> list[tuple[str, Result | None]]:
        return self.children[parent_id]

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


async def test_most_attempts_have_none(place: Place) -> None:
    async with place.inputs.of(job()) as inputs:
        assert inputs is None


async def test_each_result_is_in_a_folder_of_its_number(place: Place) -> None:
    place.known = {
        17: job(id=17, result=await place.result({"out": b"1"})),
        18: job(id=18, result=await place.result({"out": b"2", "d/e": b"3"})),
    }
    assert await place.sent(job(inputs_from=(17, 18))) == {
        "inputs/17/out": b"1",
        "inputs/18/out": b"2",
        "inputs/18/d/e": b"3",
    }


async def test_gather_gets_what_the_children_left(place: Place) -> None:
    one, two = await place.result({"out": b"1"}), await place.result({"out": b"2"})
    place.children = {7: [("a", one), ("b", None), ("c", two)]}
    place.known = {17: job(id=17, result=one)}
    assert await place.sent(job(id=7, gather=True, inputs_from=(17,))) == {
        "inputs/17/out": b"1",
        "children/a/out": b"1",
        "children/c/out": b"2",
    }


async def test_the_result_of_a_batch_is_that_of_gather_or_those_of_its_children(
    place: Place,
) -> None:
    one, two = await place.result({"out": b"1"}), await place.result({"out": b"2"})
    place.known = {17: job(id=17, result=one)}
    place.children = {17: [("0", two)]}
    asking = job(inputs_from=(17,))
    place.batches = {17: Batch(17, 1)}
    assert await place.sent(asking) == {"inputs/17/0/out": b"2"}
    place.batches = {17: Batch(17, 1, has_gather=True)}
    assert await place.sent(asking) == {"inputs/17/out": b"1"}
    place.batches = {17: Batch(17, 0)}
    assert await place.sent(asking) == {"inputs/17/out": b"1"}


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
