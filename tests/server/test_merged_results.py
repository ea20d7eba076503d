"""Results of several jobs as one ZIP."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from server.domain.jobs import FileKind, Result
from server.stages.merged_results import Part, UnusableResult, merged_results
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch


class Place:
    def __init__(self, folder: Path) -> None:
        numbers = count(1)
        self.scratch = FolderScratch(folder / "staging", "0" * 12, lambda: f"{next(numbers):020}")
        self.storage = FolderStorage(folder, self.scratch, "0" * 12, lambda: f"{next(numbers):020}")
        self.staging = folder / "staging"

    async def stored(self, *results: Mapping[str, bytes]) -> list[Result]:
        """Results one after the other in one file."""
        data, places = b"", []
        for files in results:
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in files.items():
                    archive.writestr(name, content)
            places.append((len(data), len(out.getvalue())))
            data += out.getvalue()

        async def file() -> AsyncIterator[bytes]:
            yield data

        async with self.storage.pending(FileKind.RESULT) as pending:
            name = await pending.put(file())
            pending.commit()
        return [Result(name, size, "", offset) for offset, size in places]

    async def merged(self, parts: list[Part], note: str | None = None) -> dict[str, bytes]:
        async with merged_results(self.storage, self.scratch, parts, note=note) as whole:
            data = b"".join([chunk async for chunk in whole])
            assert len(data) == whole.size
        assert not list(self.staging.iterdir())
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.testzip() is None
            return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_each_result_is_below_its_folder(place: Place) -> None:
    first, second = await place.stored({"out": b"1"}, {"out": b"2", "deep/er": b"3"})
    assert await place.merged([Part("b/", second), Part("a/", first)], "left-out.txt") == {
        "b/out": b"2",
        "b/deep/er": b"3",
        "a/out": b"1",
    }


async def test_no_results_are_an_empty_zip(place: Place) -> None:
    assert await place.merged([]) == {}


async def test_a_result_that_is_damaged_or_gone_is_left_out_and_named(place: Place) -> None:
    good, bad = await place.stored({"out": b"1"}, {"../out": b"2"})
    gone = Result("f" * 32, 10, "")
    parts = [Part("bad/", bad), Part("good/", good), Part("gone/", gone)]
    files = await place.merged(parts, "left-out.txt")
    assert files.keys() == {"good/out", "left-out.txt"}
    note = files["left-out.txt"].decode().splitlines()
    assert note[0] == "These results are left out:"
    assert note[1].startswith("bad/: ")
    assert note[2:] == ["gone/: its result is gone"]


@pytest.mark.parametrize(
    ("result", "why"),
    [(Result("f" * 32, 10, ""), "gone/: its result is gone"), (None, "gone/: .*cut short")],
)
async def test_without_a_note_it_is_an_error(place: Place, result: Result | None, why: str) -> None:
    if result is None:
        (stored,) = await place.stored({"out": b"1"})
        result = Result(stored.file, stored.size + 1, "")
    with pytest.raises(UnusableResult, match=why):
        await place.merged([Part("gone/", result)])


async def test_no_more_than_a_thousand_are_named(place: Place) -> None:
    parts = [Part(f"{n}/", Result("f" * 32, 10, "")) for n in range(1_003)]
    note = (await place.merged(parts, "note.txt"))["note.txt"].decode().splitlines()
    assert (len(note), note[-1]) == (1_002, "and 3 more")


async def test_a_full_disk_is_said_before_anything_is_sent(place: Place) -> None:
    (result,) = await place.stored({"out": b"1"})
    place.scratch._space._free = lambda: 0
    async with AsyncExitStack() as stack:
        with pytest.raises(OSError, match="No space left"):
            await stack.enter_async_context(
                merged_results(place.storage, place.scratch, [Part("a/", result)])
            )
