"""The children that a result brings: an agent may have made it up."""

from __future__ import annotations

import asyncio
import errno
import io
import threading
import zipfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from server.domain.jobs import FileKind, Result
from server.stages import deferral
from server.stages.accept import count_lines
from server.stages.deferral import Children, children_of
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from shared.files.names import BundleError
from tests.kit.raw_archives import write_bundle


class Place:
    """A storage with one result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = FolderScratch(folder / "staging", "0" * 12, lambda: "1" * 20)
        self.storage = FolderStorage(folder, self.scratch, "0" * 12, lambda: "2" * 20)

    async def children(
        self, result: bytes, *, most: int = 100, max_bytes: int = 1 << 20, keep: bool = True
    ) -> Children:
        """What a result brings that lies between others in its file; the bundle is kept."""

        async def file() -> AsyncIterator[bytes]:
            yield b"before" + result + b"behind"

        async with self.storage.pending(FileKind.RESULT) as pending:
            name = await pending.put(file())
            stored = Result(name, len(result), "", 6)
            with self.scratch.file() as to:
                try:
                    children = await children_of(
                        self.storage, stored, to, most=most, max_bytes=max_bytes
                    )
                    to.path.rename(self.folder / "bundle")
                finally:
                    assert not to.path.exists()
            return children


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def packed(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({"out": b""}, "no_children", "no children/NAME/run.sh"),
        ({"children/../run.sh": b""}, "unsafe_name", "'..'"),
        ({"children/a/x\\y": b""}, "unsafe_name", "backslash"),
        ({f"children/{n}/run.sh": b"" for n in range(4)}, "too_many_children", "more than 3"),
        ({"children/a/run.sh": b"x" * 2000}, "too_large", "limit of 1000 bytes"),
    ],
)
async def test_what_is_wrong_with_the_folders_is_said(
    place: Place, files: Mapping[str, bytes], code: str, says: str
) -> None:
    with pytest.raises(BundleError) as refused:
        await place.children(packed(files), most=3, max_bytes=1000)
    assert refused.value.code == code
    assert says in refused.value.message


async def test_a_result_is_not_trusted(place: Place) -> None:
    good = packed({"children/a/run.sh": b"echo it is deflated, and long enough for that"})
    at = good.index(b"run.sh") + 10
    with pytest.raises(BundleError):
        await place.children(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
    with pytest.raises(BundleError, match="cut short"):
        await place.children(good[:-5])


async def test_a_full_disk_leaves_nothing(place: Place) -> None:
    place.scratch.free_bytes = lambda: 0  # type: ignore[method-assign]
    place.scratch._space._free = lambda: 1000

    with pytest.raises(OSError, match=r".") as problem:
        await place.children(packed({"children/a/run.sh": b"x" * 5000}))
    assert problem.value.errno == errno.ENOSPC


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
