"""What jobs left: the result as a ZIP or as files, and its files one by one."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import BinaryIO

from ferryman.answer_errors import no_result
from ferryman.calls import Calls
from ferryman.connection import AnyPath
from ferryman.download import Download, Downloaded, sink_for
from ferryman.errors import BadArgument, NotFound, Refused
from ferryman.file_models import FileDoc, FilePage
from ferryman.form import ProgressCallback
from ferryman.unpack import unpack


class FileCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    async def download(
        self,
        job_id: int,
        to: AnyPath | BinaryIO = ".",
        *,
        partial: bool = False,
        attempt: int | None = None,
        children: bool = False,
        bundle: bool = False,
        progress: ProgressCallback | None = None,
    ) -> Downloaded:
        """Fetch the result, a ZIP; a file appears only when it is whole and its digest is right.

        Args:
            to: a folder (the file is then ``job-17.zip`` in it) or the file to write, replaced if
                it is there. A path that ends with a slash is a folder; missing folders are made.
                Or a file that is open for writing bytes.
            partial: what there is by now, whatever the state: of a running job a snapshot, of a
                failed job what it left, logs included.
            attempt: what this attempt left, whatever became of it.
            children: of a parent, what its children left, each in a folder of its name.
            bundle: what was uploaded, whatever the state.
            progress: called with bytes received and bytes in all.

        Raises:
            NotReady: the job, or the attempt, has not ended.
            NoResult: it did not complete (the text says why), or it has been cleaned.
            BadDownload, NotFound, and as :meth:`submit`
            OSError: the file cannot be written.
        """
        name, path = f"job-{job_id}", f"api/v1/jobs/{job_id}/result"
        query: dict[str, str] = {}
        if partial:
            name, path = f"{name}-partial", f"download_partial/{job_id}"
        if partial + children + bundle + (attempt is not None) > 1:
            raise BadArgument("choose one of partial, attempt, children and bundle")
        if bundle:
            name, path = f"{name}-bundle", f"api/v1/jobs/{job_id}/bundle"
        if children:
            name, query = f"{name}-children", {"children": "1"}
        if attempt is not None:
            name, query = f"{name}-attempt-{attempt}", {"attempt": str(attempt)}
        sink = await sink_for(to, f"{name}.zip")
        return await Download(self._transport, path, sink, query=query, on_progress=progress).run()

    async def save(
        self,
        job_id: int,
        to: AnyPath,
        *,
        partial: bool = False,
        attempt: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Path:
        """Fetch the result, and unpack it once it has arrived whole.

        Args:
            to: a folder, made if need be, which gets the files; those of the same names are
                replaced. A path that ends with ``.zip`` gets the ZIP instead.
            partial, attempt, progress: as :meth:`download`

        Returns:
            ``to``

        Raises:
            As :meth:`download`
        """
        target = Path(to)
        if target.suffix.lower() == ".zip":
            await self.download(job_id, target, partial=partial, attempt=attempt, progress=progress)
            return target
        was_there = await asyncio.to_thread(target.is_dir)
        await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=target) as file:
                await self.download(
                    job_id, file, partial=partial, attempt=attempt, progress=progress
                )
                await asyncio.to_thread(unpack, file, target)
        except BaseException:
            if not was_there:
                with contextlib.suppress(OSError):  # it is not empty
                    await asyncio.to_thread(target.rmdir)
            raise
        return target

    async def files(
        self, job_id: int, *, attempt: int | None = None
    ) -> AsyncGenerator[FileDoc, None]:
        """The files of the result, or while the job runs those that are there now.

        Args:
            attempt: None: the latest one.

        Raises:
            NotReady: none has started, or it is between two places: try again.
            NoResult: there are none; the text says why.
            NotFound, and as :meth:`submit`
        """
        query = {} if attempt is None else {"attempt": str(attempt)}
        while True:
            try:
                page = await self._transport.get(
                    f"api/v1/jobs/{job_id}/files", FilePage, query=query
                )
            except Refused as problem:
                raise no_result(problem) from None
            for file in page.items:
                yield file
            if page.next is None:
                return
            query["cursor"] = page.next

    async def fetch(
        self,
        job_id: int,
        path: str,
        to: AnyPath | BinaryIO = ".",
        *,
        attempt: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Downloaded:
        """Fetch one file of a job, without the others; while it runs, as it is now.

        Args:
            path: as :meth:`files` has it.
            to: as :meth:`download` takes it; in a folder the file gets its own name.

        Raises:
            NotFound: no such job or file.
            NotReady, NoResult: as :meth:`files`
            As :meth:`download`
        """
        if not {"", ".", ".."}.isdisjoint(path.split("/")):  # a URL with them means another route
            raise NotFound(404, "file_not_found", f"job {job_id} has no file “{path}”")
        sink = await sink_for(to, path.rpartition("/")[2])
        route = f"api/v1/jobs/{job_id}/files/{path}"
        query = {} if attempt is None else {"attempt": str(attempt)}
        return await Download(
            self._transport, route, sink, query=query, media=None, on_progress=progress
        ).run()

    async def open_file(self, job_id: int, path: str, *, attempt: int | None = None) -> BinaryIO:
        """One file of a job, to be read; a temporary copy, which is gone when it is closed.

        Raises:
            As :meth:`fetch`
        """
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        try:
            await self.fetch(job_id, path, file, attempt=attempt)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file
