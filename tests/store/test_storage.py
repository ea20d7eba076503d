"""What a storage promises: put and open, lists, deletion, orphans, crashes, a full disk."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import aiohttp
import pytest

from server.agents import answers
from server.domain.jobs import FileKind
from server.ports import InUse, RunningServers, ScratchFile, Storage
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from shared.clock import RealClock
from tests.kit.each import each
from tests.kit.inline_database import SimulatedCrash
from tests.kit.stored import chunks, read

B, R = FileKind.BUNDLE, FileKind.RESULT
FIRST, SECOND = "0000000000a1", "0000000000b2"
"""Two runs of a server."""
LARGE = hashlib.shake_128(b"large").digest(2_500_000)


class Place:
    """Where stored files outlive the run that stored them.

    Attributes:
        first: the storage of the first run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self.first = self.run(FIRST)

    def token(self) -> str:
        return f"{next(self._numbers) * 0x123456789ABCDEF:020x}"[::-1][:20]

    def scratch(self, owner: str) -> FolderScratch:
        return FolderScratch(self.folder / "staging", owner, self.token)

    def run(self, owner: str) -> Storage:
        """The storage as another run of a server sees it."""
        return FolderStorage(self.folder, self.scratch(owner), owner, self.token)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Meanwhile there is no space for anything."""

        def refused(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with mock.patch("os.fsync", refused), mock.patch("os.write", refused):
            yield

    def put_stranger(self, kind: FileKind, name: str) -> None:
        """Somebody else puts a file there."""
        (self.folder / kind / name).parent.mkdir(exist_ok=True)
        (self.folder / kind / name).write_bytes(b"?")

    def has_stranger(self, kind: FileKind, name: str) -> bool:
        return (self.folder / kind / name).exists()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.first


async def put(storage: Storage, content: bytes = b"content", kind: FileKind | None = None) -> str:
    """Store content that a row refers to; its name."""
    async with storage.pending(kind or FileKind.RESULT) as pending:
        name = await pending.put(chunks(content))
        pending.commit()
    return name


async def names(storage: Storage, kind: FileKind = FileKind.RESULT) -> list[str]:
    """All that is listed."""
    found: list[str] = []
    while page := await storage.list(kind, found[-1] if found else ""):
        found += page
    return found


def rows(*referred: str) -> InUse:
    """Rows that refer to these files."""

    async def in_use(asked: Sequence[str]) -> set[str]:
        return set(referred) & set(asked)

    return in_use


def running(*owners: str) -> RunningServers:
    async def running_servers() -> set[str]:
        return set(owners)

    return running_servers


async def sweep(storage: Storage, in_use: InUse, running_servers: RunningServers) -> int:
    """Delete the orphans among all results."""
    listed = await names(storage)
    return await storage.delete_orphans(FileKind.RESULT, listed, in_use, running_servers)


# -- put and open


@each("content", [b"", b"x", b"x" * 300_000, LARGE])
async def test_what_was_put_can_be_read(storage: Storage, content: bytes) -> None:
    name = await put(storage, content)
    assert await read(storage, R, name) == content
    async with storage.open(R, name) as stream:
        assert stream.size == len(content)
    async with storage.local_copy(R, name) as path:
        assert path.read_bytes() == content
    assert await read(storage, R, name) == content  # reading changes nothing


async def test_a_stream_of_many_chunks_is_one_file(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        name = await pending.put(chunks(b"a", b"", b"b" * 100_000, b"c"))
        assert await read(storage, R, name) == b"a" + b"b" * 100_000 + b"c"


async def test_a_scratch_file_is_stored_with_its_content(place: Place) -> None:
    scratch = place.scratch(FIRST)
    async with place.first.pending(B) as pending:
        with scratch.file() as file:
            file.path.write_bytes(LARGE)
            name = await pending.put(file)
        pending.commit()
    assert await read(place.first, B, name) == LARGE
    assert await scratch.clear(running()) == 0  # nothing of it is left over


async def test_a_name_says_who_stored_the_file_and_is_never_given_again(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        names = [await pending.put(chunks(b"same")) for _ in range(20)]
    assert len(set(names)) == 20
    assert all(re.fullmatch(rf"[0-9a-f]{{20}}{FIRST}", name) for name in names)


async def test_kinds_do_not_mix(storage: Storage) -> None:
    name = await put(storage, kind=B)
    with pytest.raises(FileNotFoundError):
        await read(storage, R, name)


async def test_the_range_ends_before_its_end(storage: Storage) -> None:
    for content in (b"0123456789", LARGE):
        name = await put(storage, content)
        for start, end in (
            *((0, 10), (0, 1), (3, 7), (9, 10), (3, None), (0, 0), (5, 5)),
            *((5, 10**9), (10**9, None)),
        ):
            assert await read(storage, R, name, start, end) == content[start:end]
            async with storage.open(R, name, start, end) as stream:
                assert stream.size == len(content)  # of the whole file


async def test_a_file_that_is_not_there_says_so(storage: Storage) -> None:
    missing = "f" * 20 + FIRST
    with pytest.raises(FileNotFoundError):
        await read(storage, R, missing)
    with pytest.raises(FileNotFoundError):
        async with storage.local_copy(R, missing) as path:
            path.read_bytes()


# -- lists


async def test_each_file_is_listed_once_and_in_order(storage: Storage) -> None:
    put_names = [await put(storage) for _ in range(30)]
    assert await names(storage) == sorted(put_names)
    assert await names(storage, B) == []


async def test_the_list_goes_on_behind_any_name(storage: Storage) -> None:
    put_names = sorted([await put(storage) for _ in range(10)])
    for after in (*put_names, "", "8", "f" * 32):
        page = await storage.list(R, after)
        behind = [name for name in put_names if name > after]
        assert page == behind[: len(page)]
        assert bool(page) == bool(behind)


async def test_files_that_go_and_come_meanwhile_do_not_confuse_the_list(storage: Storage) -> None:
    put_names = sorted([await put(storage) for _ in range(10)])
    page = await storage.list(R)
    await storage.delete([(R, page[-1])])
    rest: list[str] = []
    while more := await storage.list(R, (page + rest)[-1]):
        rest += more
    assert page + rest == put_names


async def test_what_another_run_stored_is_listed_too(place: Place) -> None:
    other = place.run(SECOND)
    both = sorted([await put(place.first), await put(other)])
    assert await names(place.first) == await names(other) == both


async def test_what_somebody_else_put_there_is_not_listed(place: Place) -> None:
    for name in ("notes.txt", "aa/notes.txt", "aa/" + "b" * 32, "zz/" + "z" * 32):
        place.put_stranger(R, name)
    mine = await put(place.first)
    assert await names(place.first) == [mine]


# -- deletion


async def test_only_the_files_that_were_named_are_deleted(storage: Storage) -> None:
    bundle, first, second = await put(storage, kind=B), await put(storage), await put(storage)
    await storage.delete([(B, bundle), (R, first)])
    with pytest.raises(FileNotFoundError):
        await read(storage, R, first)
    assert (await names(storage, B), await names(storage)) == ([], [second])
    assert await read(storage, R, second) == b"content"


async def test_what_is_not_there_can_be_deleted(storage: Storage) -> None:
    name = await put(storage)
    await storage.delete([(R, "f" * 20 + FIRST), (B, name), (R, name)])
    await storage.delete([(R, name)])
    assert await names(storage) == []


async def test_a_file_that_is_deleted_can_be_read_to_its_end(storage: Storage) -> None:
    content = b"x" * 3_000_000
    name = await put(storage, content)
    async with storage.open(R, name) as stream:
        await storage.delete([(R, name)])
        assert b"".join([chunk async for chunk in stream]) == content


async def test_what_is_not_committed_is_deleted(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        kept = await pending.put(chunks(b"1"))
        pending.commit()
        await pending.put(chunks(b"2"))
    assert await names(storage) == [kept]


async def test_an_error_deletes_what_is_pending_only(storage: Storage) -> None:
    committed: list[str] = []

    async def fails() -> None:
        async with storage.pending(R) as pending:
            committed.append(await pending.put(chunks(b"1")))
            pending.commit()
            await pending.put(chunks(b"2"))
            raise ValueError("no row")

    with pytest.raises(ValueError, match="no row"):
        await fails()
    assert await names(storage) == committed


# -- orphans


async def test_a_file_with_a_row_stays_and_one_without_goes(storage: Storage) -> None:
    with_row, _ = await put(storage), await put(storage)
    assert await sweep(storage, rows(with_row), running(FIRST)) == 1
    assert await names(storage) == [with_row]


async def test_a_pending_file_is_no_orphan(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        name = await pending.put(chunks(b"x"))
        assert await sweep(storage, rows(), running(FIRST)) == 0
        pending.commit()
    assert await sweep(storage, rows(name), running(FIRST)) == 0
    assert await names(storage) == [name]


async def test_a_row_that_is_written_during_the_sweep_counts(storage: Storage) -> None:
    referred = set[str]()

    async def in_use(asked: Sequence[str]) -> set[str]:
        return referred & set(asked)

    async with storage.pending(R) as pending:
        name = await pending.put(chunks(b"x"))
        listed = await names(storage)

        async def running_servers() -> set[str]:
            referred.add(name)  # meanwhile the row is written
            pending.commit()
            return {FIRST}

        assert await storage.delete_orphans(R, listed, in_use, running_servers) == 0
    assert await names(storage) == [name]


async def test_what_a_run_that_is_alive_stored_is_left_alone(place: Place) -> None:
    """The other server is between the file and the row."""
    other = place.run(SECOND)
    async with other.pending(R) as pending:
        name = await pending.put(chunks(b"x"))
        assert await sweep(place.first, rows(), running(FIRST, SECOND)) == 0
        pending.commit()
    assert await names(other) == [name]


async def test_what_a_dead_run_stored_is_an_orphan_unless_it_has_a_row(place: Place) -> None:
    other = place.run(SECOND)
    with_row, _ = await put(other), await put(other)
    assert await sweep(place.first, rows(with_row), running(FIRST)) == 1
    assert await names(place.first) == [with_row]


async def test_this_run_is_asked_about_its_own_files_not_its_lease(storage: Storage) -> None:
    """A run that has lost its lease for a moment still knows what it is about to refer to."""
    async with storage.pending(R) as pending:
        await pending.put(chunks(b"x"))
        assert await sweep(storage, rows(), running()) == 0
        pending.commit()
    assert await sweep(storage, rows(), running(FIRST)) == 1


async def test_names_of_releases_without_owners_are_judged_by_their_rows(place: Place) -> None:
    other = place.run("123456789abc")  # no run: digits by chance
    with_row, _ = await put(other), await put(other)
    assert await sweep(place.first, rows(with_row), running(FIRST, SECOND)) == 1
    assert await names(place.first) == [with_row]


async def test_what_somebody_else_put_there_stays(place: Place) -> None:
    await put(place.first)
    strangers = ("notes.txt", "aa/notes.txt")
    for name in strangers:
        place.put_stranger(R, name)
    assert await sweep(place.first, rows(), running(FIRST)) == 1
    assert all(place.has_stranger(R, name) for name in strangers)


async def test_if_the_rows_cannot_be_read_nothing_is_deleted(storage: Storage) -> None:
    name = await put(storage)

    async def fails(_: Sequence[str]) -> set[str]:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        await sweep(storage, fails, running(FIRST))
    assert await names(storage) == [name]


# -- many at once, and several servers


async def test_files_that_are_stored_at_once_do_not_mix(storage: Storage) -> None:
    contents = [bytes([number]) * 50_000 * (number + 1) for number in range(30)]
    stored = await asyncio.gather(*(put(storage, content) for content in contents))
    found = await asyncio.gather(*(read(storage, R, name) for name in stored))
    assert found == contents
    assert await names(storage) == sorted(stored)


async def test_sweeps_of_two_servers_take_nothing_from_uploads_under_way(place: Place) -> None:
    first, second = place.first, place.run(SECOND)
    referred = set[str]()

    async def in_use(asked: Sequence[str]) -> set[str]:
        return referred & set(asked)

    async def upload(storage: Storage, other: Storage, number: int) -> None:
        async with storage.pending(R) as pending:
            name = await pending.put(chunks(b"%d" % number))
            assert await sweep(other, in_use, running(FIRST, SECOND)) == 0
            assert await sweep(storage, in_use, running(FIRST, SECOND)) == 0
            referred.add(name)
            pending.commit()

    uploads = [upload(first, second, number) for number in range(10)]
    uploads += [upload(second, first, number) for number in range(10)]
    await asyncio.gather(*uploads)
    assert set(await names(first)) == referred
    assert len(referred) == 20


# -- crashes


async def breaking(error: BaseException) -> AsyncIterator[bytes]:
    yield b"x" * 100_000
    raise error


@pytest.mark.parametrize("error", [SimulatedCrash(), asyncio.CancelledError(), ValueError()])
async def test_half_a_stream_is_no_file(place: Place, error: BaseException) -> None:
    with pytest.raises(type(error)):
        async with place.first.pending(R) as pending:
            await pending.put(breaking(error))
    assert await names(place.first) == await names(place.run(SECOND)) == []


async def dies_after_storing(storage: Storage, stored: list[str]) -> None:
    async with storage.pending(R) as pending:
        stored.append(await pending.put(chunks(b"whole")))
        raise SimulatedCrash


async def test_a_crash_before_the_row_leaves_an_orphan_for_the_next_run(place: Place) -> None:
    stored: list[str] = []
    with pytest.raises(SimulatedCrash):
        await dies_after_storing(place.first, stored)
    following = place.run(SECOND)
    assert await read(following, R, stored[0]) == b"whole"
    assert await sweep(following, rows(), running(SECOND)) == 1
    assert await names(following) == []


async def test_a_cancelled_write_may_still_come_so_its_file_stays(storage: Storage) -> None:
    async def accept(stored: asyncio.Event) -> None:
        async with storage.pending(R) as pending:
            await pending.put(chunks(b"x"))
            stored.set()
            await asyncio.Event().wait()  # the database is about to write the row

    stored = asyncio.Event()
    task = asyncio.create_task(accept(stored))
    await stored.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await sweep(storage, rows(), running(FIRST)) == 0
    assert len(await names(storage)) == 1


async def test_scratch_files_go_with_their_run(place: Place) -> None:
    one, other = place.scratch(FIRST), place.scratch(SECOND)
    with one.file() as dead, other.file() as living:
        for file in (dead, living):
            file.path.write_bytes(b"half")
        archive = dead.path.with_name(f"{dead.path.name}.archive")
        archive.write_bytes(b"half an archive")
        assert await place.scratch("0000000000c3").clear(running(SECOND)) == 2
        assert (dead.path.exists(), archive.exists(), living.path.exists()) == (False, False, True)


@pytest.mark.parametrize("of_an_agent", [False, True])
async def test_a_scratch_file_that_is_made_for_a_caller_who_was_cancelled_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_an_agent: bool
) -> None:
    begun, go_on, real = threading.Event(), threading.Event(), Path.open

    def slow(path: Path, *how: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return real(path, *how, **more)

    async def store(scratch: FolderScratch) -> None:
        with scratch.file() as file:
            await (fetch(file) if of_an_agent else file.write(chunks(b"content")))

    async def fetch(file: ScratchFile) -> None:
        unread = cast(aiohttp.ClientResponse, None)
        await answers.store(unread, file, RealClock())

    monkeypatch.setattr(Path, "open", slow)
    storing = asyncio.create_task(store(FolderScratch(tmp_path, FIRST, lambda: "0" * 20)))
    await asyncio.to_thread(begun.wait, 30)
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(tmp_path.iterdir()) == []


# -- a full disk


async def test_a_file_that_does_not_fit_is_refused_and_leaves_nothing(place: Place) -> None:
    kept = await put(place.first, b"kept")
    with place.full(), pytest.raises(OSError, match="No space left") as caught:
        async with place.first.pending(R) as pending:
            await pending.put(chunks(b"x" * 100_000))
    assert caught.value.errno == errno.ENOSPC
    assert await names(place.first) == [kept]
    assert await read(place.first, R, kept) == b"kept"
    assert list((place.folder / "staging").iterdir()) == []


async def test_a_scratch_file_that_cannot_be_stored_leaves_nothing(place: Place) -> None:
    with place.scratch(FIRST).file() as file:
        file.path.write_bytes(b"x")
        with place.full(), pytest.raises(OSError, match="No space left"):
            async with place.first.pending(R) as pending:
                await pending.put(file)
    assert await names(place.first) == []


async def test_there_is_room_again_after_a_deletion(place: Place) -> None:
    name = await put(place.first)
    with place.full():
        with pytest.raises(OSError, match="No space left"):
            await put(place.first)
        await place.first.delete([(R, name)])
    assert await names(place.first) == []
    assert await read(place.first, R, await put(place.first, b"again")) == b"again"
    assert await sweep(place.first, rows(), running(FIRST)) == 1
