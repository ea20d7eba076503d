"""What every storage must promise; the folder and an implementation in memory are held to it.

Another storage adds a :class:`Place` of its own and passes the same tests.
"""

from __future__ import annotations

import errno
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

import pytest

from server.domain.jobs import FileKind
from server.ports import InUse, RunningServers, Storage
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from tests.kit.memory_storage import Contents, MemoryStorage
from tests.kit.stored import chunks

FIRST, SECOND = "0000000000a1", "0000000000b2"
"""Two runs of a server."""


class Place(ABC):
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

    @abstractmethod
    def run(self, owner: str) -> Storage:
        """The storage as another run of a server sees it."""

    @abstractmethod
    def full(self) -> AbstractContextManager[None]:
        """Meanwhile there is no space for anything."""

    @abstractmethod
    def put_stranger(self, kind: FileKind, name: str) -> None:
        """Somebody else puts a file there."""

    @abstractmethod
    def has_stranger(self, kind: FileKind, name: str) -> bool: ...


class FolderPlace(Place):
    def run(self, owner: str) -> Storage:
        return FolderStorage(self.folder, self.scratch(owner), owner, self.token)

    @contextmanager
    def full(self) -> Iterator[None]:
        def refused(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with mock.patch("os.fsync", refused), mock.patch("os.write", refused):
            yield

    def put_stranger(self, kind: FileKind, name: str) -> None:
        (self.folder / kind / name).parent.mkdir(exist_ok=True)
        (self.folder / kind / name).write_bytes(b"?")

    def has_stranger(self, kind: FileKind, name: str) -> bool:
        return (self.folder / kind / name).exists()


class MemoryPlace(Place):
    def __init__(self, folder: Path) -> None:
        self.contents = Contents()
        super().__init__(folder)

    def run(self, owner: str) -> Storage:
        return MemoryStorage(self.contents, self.scratch(owner), owner, self.token)

    @contextmanager
    def full(self) -> Iterator[None]:
        before, self.contents.most = self.contents.most, 0
        yield
        self.contents.most = before

    def put_stranger(self, kind: FileKind, name: str) -> None:
        self.contents.files[kind, name] = b"?"

    def has_stranger(self, kind: FileKind, name: str) -> bool:
        return (kind, name) in self.contents.files


@pytest.fixture(params=[FolderPlace, MemoryPlace], ids=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made


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
