"""What becomes of stored results: one ZIP of several, inputs of other jobs, children. An agent may
have made them up.
"""

from __future__ import annotations

import asyncio
import errno
import io
import threading
import zipfile
from collections.abc import AsyncIterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from server.domain.errors import NoSuchJob
from server.domain.jobs import FileKind, Job, Result
from server.stages import deferral
from server.stages.accept import count_lines
from server.stages.deferral import Children, children_of
from server.stages.inputs import Inputs, InputsNotMade, NoInputs
from server.stages.merged_results import Part, UnusableResult, merged_results
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from shared.files.names import BundleError
from tests.kit.each import each
from tests.kit.jobs import job
from tests.kit.raw_archives import write_bundle, zipped
from tests.kit.stage_resources import resources

GONE = Result("f" * 32, 10, "")


class Place:
    """A folder of results, and some jobs that have them."""

    def __init__(self, folder: Path) -> None:
        numbers = count(1)
        name = ("0" * 12, lambda: f"{next(numbers):020}")
        self.folder, self.staging = folder, folder / "staging"
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

    async def stored(self, content: bytes | Mapping[str, bytes]) -> Result:
        """A result that lies between others in its file."""
        whole = content if isinstance(content, bytes) else zipped(content)

        async def file() -> AsyncIterator[bytes]:
            yield b"before" + whole + b"behind"

        async with self.storage.pending(FileKind.RESULT) as pending:
            name = await pending.put(file())
            pending.commit()
        return Result(name, len(whole), "", 6)

    async def merged(self, parts: list[Part], note: str | None = None) -> dict[str, bytes]:
        async with merged_results(self.storage, self.scratch, parts, note=note) as whole:
            data = b"".join([chunk async for chunk in whole])
            assert len(data) == whole.size
        assert not list(self.staging.iterdir())
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.testzip() is None
            return {name: archive.read(name) for name in archive.namelist()}

    async def given_inputs(self) -> None:
        """Make what a job gets that wants those of job 1."""
        async with self.inputs.of(job(inputs_from=(1,))):
            pass

    async def children(self, result: bytes | Mapping[str, bytes]) -> Children:
        """Whom it brings, of 3 and 1000 bytes at most."""
        stored = await self.stored(result)
        with self.scratch.file() as to:
            try:
                children = await children_of(self.storage, stored, to, most=3, max_bytes=1000)
                to.path.rename(self.folder / "bundle")
            finally:
                assert not to.path.exists()
        return children


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_each_result_is_below_its_folder_and_what_is_damaged_or_gone_is_named(
    place: Place,
) -> None:
    good = await place.stored({"out": b"1", "deep/er": b"2"})
    bad = await place.stored({"../out": b"2"})
    parts = [Part("bad/", bad), Part("b/", good), Part("a/", good), Part("gone/", GONE)]
    files = await place.merged(parts, "left-out.txt")
    note = files.pop("left-out.txt").decode().splitlines()
    assert list(files.items()) == [
        ("b/out", b"1"),
        ("b/deep/er", b"2"),
        ("a/out", b"1"),
        ("a/deep/er", b"2"),
    ]
    assert note[0] == "These results are left out:"
    assert note[1].startswith("bad/: ")
    assert note[2:] == ["gone/: its result is gone"]
    assert "left-out.txt" not in await place.merged([Part("a/", good)], "left-out.txt")
    many = [Part(f"{number}/", GONE) for number in range(1_003)]
    note = (await place.merged(many, "note.txt"))["note.txt"].decode().splitlines()
    assert (len(note), note[-1]) == (1_002, "and 3 more")


async def test_what_a_job_was_to_get_and_cannot_is_named(place: Place) -> None:
    good = await place.stored({"out": b"1"})
    cut = Result(good.file, good.size - 1, "", 6)
    unusable = "what it was to get below inputs/1/ cannot be used: "
    gone = "the result of job 1, which it was to get, is gone"
    cases: list[tuple[dict[int, Job], str]] = [
        ({}, gone),
        ({1: job(id=1, result=None)}, gone),
        ({1: job(id=1, result=GONE)}, f"{unusable}its result is gone"),
        ({1: job(id=1, result=cut)}, f"{unusable}.*cut short"),
    ]
    for place.known, why in cases:
        with pytest.raises(NoInputs, match=why):
            await place.given_inputs()
        assert not list(place.staging.iterdir())
    with pytest.raises(UnusableResult, match=r"x/: .*cut short"):
        await place.merged([Part("x/", cut)])  # a note would say so


async def test_more_files_than_an_agent_takes_are_refused_before_they_are_sent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.stages.inputs.MAX_MERGED", 1)
    place.known = {1: job(id=1, result=await place.stored({"a": b"", "b": b""}))}
    with pytest.raises(NoInputs, match="have 2 files and folders, more than 1"):
        await place.given_inputs()


async def test_a_full_disk_is_no_fault_of_a_job_and_leaves_nothing(place: Place) -> None:
    result = await place.stored({"children/a/run.sh": b"x"})
    place.known = {1: job(id=1, result=result)}
    place.scratch._space._free = lambda: 0
    with pytest.raises(OSError, match="No space left"):
        await place.merged([Part("a/", result)])
    with pytest.raises(InputsNotMade, match="No space left"):
        await place.given_inputs()
    place.scratch.free_bytes = lambda: 0  # type: ignore[method-assign]
    with place.scratch.file() as to, pytest.raises(OSError, match=r".") as problem:
        await children_of(place.storage, result, to, most=3, max_bytes=1 << 20)
    assert (problem.value.errno, to.path.exists()) == (errno.ENOSPC, False)
    assert not list(place.staging.iterdir())


@each(
    "files, code, says",
    [
        ({"out": b""}, "no_children", "no children/NAME/run.sh"),
        ({"children/../run.sh": b""}, "unsafe_name", "'..'"),
        ({"children/a/x\\y": b""}, "unsafe_name", "backslash"),
        ({"children/b/run.sh": b"", "children/list": b""}, "not_in_a_child", "“children/list”: it"),
        ({"children/b/run.sh": b"", "children/a/x": b""}, "no_run_sh", "“children/a”: it has no"),
        ({"children/a b/run.sh": b""}, "bad_child_name", "1 to 64 of A-Z a-z 0-9 . _ -"),
        ({"children/.x/run.sh": b""}, "bad_child_name", "not “.x”"),
        ({"children/run.sh/run.sh": b""}, "bad_child_name", "not “run.sh”"),
        ({f"children/{n}/run.sh": b"" for n in range(4)}, "too_many_children", "more than 3"),
        ({"children/a/run.sh": b"x" * 2000}, "too_large", "limit of 1000 bytes"),
    ],
)
async def test_what_is_wrong_with_the_folders_of_children_is_said(
    place: Place, files: Mapping[str, bytes], code: str, says: str
) -> None:
    with pytest.raises(BundleError) as refused:
        await place.children(files)
    assert refused.value.code == code
    assert says in str(refused.value)


async def test_damaged_children_are_refused(place: Place) -> None:
    good = zipped({"children/a/run.sh": b"echo it is deflated, and long enough for that"})
    at = good.index(b"run.sh") + 10
    with pytest.raises(BundleError):
        await place.children(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
    with pytest.raises(BundleError, match="cut short"):
        await place.children(good[:-5])


async def test_no_more_lines_are_counted_than_matter(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"run.sh": b"", "params.txt": b"x\n" * 1000 + b"\0"})
    assert await count_lines(tmp_path / "b", "params.txt", 10) == 11


async def test_who_gives_up_gives_the_space_back_once_nothing_is_written_any_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, written = threading.Event(), threading.Event(), threading.Event()

    def write(*given: Any) -> None:
        begun.set()
        goes_on.wait(20)
        given[2].reserve(1 << 20)
        written.set()

    monkeypatch.setattr(FolderScratch, "free_bytes", lambda _: 1 << 30)
    monkeypatch.setattr(deferral, "_write", write)
    making = asyncio.create_task(place.children(b"x"))
    assert await asyncio.to_thread(begun.wait, 20)
    making.cancel()
    asyncio.get_running_loop().call_soon(goes_on.set)  # once it is cancelled
    with pytest.raises(asyncio.CancelledError):
        await making
    assert await asyncio.to_thread(written.wait, 20)
    assert place.scratch.measure() == 1 << 30
