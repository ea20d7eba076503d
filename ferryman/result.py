"""A job that has ended, with what it left."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

from pydantic import PrivateAttr

from ferryman.connection import AnyPath
from ferryman.file_models import FileDoc
from ferryman.form import ProgressCallback
from ferryman.models import JobDoc


class _FileCalls(Protocol):
    async def save(
        self,
        job_id: int,
        to: AnyPath,
        *,
        partial: bool = False,
        progress: ProgressCallback | None = None,
    ) -> Path: ...

    def files(self, job_id: int) -> AsyncGenerator[FileDoc, None]: ...

    async def open_file(self, job_id: int, path: str) -> BinaryIO: ...


class _SyncFileCalls(Protocol):
    def save(
        self,
        job_id: int,
        to: AnyPath,
        *,
        partial: bool = False,
        progress: ProgressCallback | None = None,
    ) -> Path: ...

    def files(self, job_id: int) -> Generator[FileDoc, None, None]: ...

    def open_file(self, job_id: int, path: str) -> BinaryIO: ...


def _fields(job: JobDoc) -> dict[str, Any]:
    return {name: getattr(job, name) for name in JobDoc.model_fields}


class _Ended(JobDoc):
    def __reduce__(self) -> tuple[Any, ...]:
        # Without its client, which belongs to this process.
        return JobDoc.model_validate, (_fields(self),)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # nothing in it changes


class Result(_Ended):
    """The document of a job that has ended, with what it left.

    It needs the client from which it came to be open. In another process it is the document alone.
    """

    _client: _FileCalls = PrivateAttr()

    @staticmethod
    def of(job: JobDoc, client: _FileCalls) -> Result:
        """The job as this client sees it."""
        result = Result.model_construct(**_fields(job))
        result._client = client
        return result

    async def save(
        self, to: AnyPath, *, partial: bool = False, progress: ProgressCallback | None = None
    ) -> Path:
        """Fetch and unpack what it left; see :meth:`ferryman.Client.save`.

        Args:
            to: a folder, or a path that ends with ``.zip``.
            partial: also of a job that did not complete: what there is.
        """
        return await self._client.save(self.id, to, partial=partial, progress=progress)

    def files(self) -> AsyncGenerator[FileDoc, None]:
        """The files that it left; see :meth:`ferryman.Client.files`."""
        return self._client.files(self.id)

    async def open(self, path: str) -> BinaryIO:
        """One of its files, to be read; see :meth:`ferryman.Client.open_file`."""
        return await self._client.open_file(self.id, path)


class SyncResult(_Ended):
    """:class:`Result` without ``await``."""

    _client: _SyncFileCalls = PrivateAttr()

    @staticmethod
    def of(job: JobDoc, client: _SyncFileCalls) -> SyncResult:
        """See :meth:`Result.of`."""
        result = SyncResult.model_construct(**_fields(job))
        result._client = client
        return result

    def save(
        self, to: AnyPath, *, partial: bool = False, progress: ProgressCallback | None = None
    ) -> Path:
        """See :meth:`Result.save`."""
        return self._client.save(self.id, to, partial=partial, progress=progress)

    def files(self) -> Generator[FileDoc, None, None]:
        """See :meth:`Result.files`."""
        return self._client.files(self.id)

    def open(self, path: str) -> BinaryIO:
        """See :meth:`Result.open`."""
        return self._client.open_file(self.id, path)
