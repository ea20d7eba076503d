"""The children that a result brings, and what batches read of bundles."""

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
from server.stages.deferral import Children, child_names, children_of
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from shared.files.bundles.reader import BundleReader
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


async def test_all_folders_with_a_script_become_one_bundle(place: Place) -> None:
    children = await place.children(
        packed(
            {
                "children/b/run.sh": b"echo b",
                "children/b/deep/data": b"1234",
                "children/a/run.sh": b"echo a",
                "children/empty/": b"",
                "output.txt": b"not a child's",
                "stdout.log": b"",
            }
        )
    )
    assert children.names == ("a", "b")
    with BundleReader(place.folder / "bundle") as reader:
        assert reader.summary() == children.bundle
        content = {one.path: b"".join(reader.content(one.path, 100)) for one in reader.entries}
    script = content.pop("run.sh")
    assert script.endswith(b"exit 64\n")
    assert content == {"b/run.sh": b"echo b", "b/deep/data": b"1234", "a/run.sh": b"echo a"}


async def test_a_single_child_keeps_its_folder(place: Place) -> None:
    children = await place.children(packed({"children/only/run.sh": b"true"}))
    assert children.names == ("only",)
    with BundleReader(place.folder / "bundle") as reader:
        assert {one.path for one in reader.entries} == {"only/run.sh", "run.sh"}


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({"out": b""}, "no_children", "no children/NAME/run.sh"),
        ({"children/a/main.sh": b""}, "no_run_sh", "“children/a”: it has no run.sh"),
        ({"children/list": b""}, "not_in_a_child", "“children/list”: it is in no child's folder"),
        ({"children/a b/run.sh": b""}, "bad_child_name", "1 to 64 of A-Z a-z 0-9 . _ -"),
        ({"children/.x/run.sh": b""}, "bad_child_name", "not “.x”"),
        ({"children/run.sh/run.sh": b""}, "bad_child_name", "not “run.sh”"),
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


def test_the_children_of_a_bundle_are_its_folders(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"run.sh": b"", "b/run.sh": b"", "a/run.sh": b"", "a/c/x": b""})
    assert child_names(tmp_path / "b") == ("a", "b")


@pytest.mark.parametrize(
    ("content", "count"),
    [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), (b"\n", 1), (b"a\r\nb\r\n", 2)],
)
async def test_lines_are_counted(tmp_path: Path, content: bytes, count: int) -> None:
    write_bundle(tmp_path / "b", {"run.sh": b"", "params.txt": content})
    assert await count_lines(tmp_path / "b", "params.txt", 10) == count


async def test_no_more_lines_are_counted_than_matter(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"run.sh": b"", "params.txt": b"x\n" * 1000 + b"\0"})
    assert await count_lines(tmp_path / "b", "params.txt", 10) == 11


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("other.txt", b"", "“other.txt”: the bundle has no such file"),
        ("params.txt", b"a\n" + b"x" * 70_000, "“params.txt”: line 2 is longer than 65536 bytes"),
        ("params.txt", b"a\nb\0c\n", "“params.txt”: line 2 has a NUL character"),
        ("params.txt", b"\xc3\xbc\n\xff", "“params.txt”: line 2 is not UTF-8"),
    ],
)
async def test_a_line_that_no_child_can_get_is_refused(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    write_bundle(tmp_path / "b", {"run.sh": b"", "params.txt": content})
    with pytest.raises(BundleError, match=says):
        await count_lines(tmp_path / "b", name, 10)


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
    threading.Timer(0.05, goes_on.set).start()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert await asyncio.to_thread(written.wait, 20)
    assert place.scratch.measure() == 1 << 30
