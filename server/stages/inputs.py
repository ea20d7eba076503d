"""The files of other jobs that an attempt gets beside its bundle, as one ZIP.

It is made when the attempt is sent, and gone afterwards: results are stored once.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

from server.agents.agent import Inputs
from server.domain.errors import NoSuchJob
from server.domain.jobs import Job
from server.stages.merged_results import (
    MergedResults,
    Part,
    UnusableResult,
    given_bundle,
    merged_results,
)
from server.stages.stage import Stage
from server.storage.scratch import ScratchFile
from server.store import batches, jobs
from shared.files.archives.zip_reader import MAX_MERGED
from shared.files.durable import remove_quietly, write_all
from shared.files.names import BundleError
from shared.files.opened import opened, to_end

_INPUTS: Final = "inputs/"
_CHILDREN: Final = "children/"


class NoInputs(Exception):
    """The files that the job was to get are not there any more, or cannot be used."""


class InputsNotMade(Exception):
    """They cannot be put together now, as on a full disk."""


class MakeInputs(Stage):
    """Puts inputs together: ``inputs/17/`` for each of ``inputs_from``, and the results of the
    children, ``children/NAME/``, for gather.sh.
    """

    @asynccontextmanager
    async def of(self, job: Job) -> AsyncIterator[Inputs | None]:
        """The inputs of an attempt that is to be sent; None: it has none. Raises NoInputs,
        InputsNotMade.
        """
        if not job.inputs_from and not job.gather:
            yield None
            return
        async with self.core.scratch.file() as file:
            try:
                parts = await self._parts(job)
                async with merged_results(self.core.contents, self.core.scratch, parts) as merged:
                    if merged.entries > MAX_MERGED:
                        raise NoInputs(
                            f"the results that it was to get have {merged.entries} files and "
                            f"folders, more than {MAX_MERGED}"
                        )
                    size, sha256 = merged.size, await _write(merged, file)
            except UnusableResult as problem:
                why = f"what it was to get below {problem.part.prefix} cannot be used"
                raise NoInputs(f"{why}: {problem.why}") from None
            except BundleError as problem:
                raise NoInputs(problem.message) from None
            except OSError as problem:
                raise InputsNotMade(problem.strerror or str(problem)) from problem
            yield Inputs(size, sha256, file)

    async def _parts(self, job: Job) -> list[Part]:
        """Raises NoInputs."""
        parts: list[Part] = []
        for on_id in job.inputs_from:
            parts += await self._result_of(on_id)
        if job.gather:
            parts += await self._children(job.id, _CHILDREN)
        return parts

    async def _result_of(self, job_id: int) -> list[Part]:
        """That of the job; of a batch without a gather.sh, those of its children."""
        prefix = f"{_INPUTS}{job_id}/"
        batch = await self.core.database.read(batches.get, job_id)
        if batch is not None and batch.total and not batch.has_gather:
            return await self._children(job_id, prefix)
        with suppress(NoSuchJob):
            job = await self.core.database.read(jobs.get, job_id)
            if job.result is not None:
                return [Part(prefix, job.result, given_bundle(job), job.bundle_folder)]
        raise NoInputs(f"the result of job {job_id}, which it was to get, is gone")

    async def _children(self, parent_id: int, prefix: str) -> list[Part]:
        children = await self.core.database.read_list(batches.child_results, parent_id)
        return [
            Part(f"{prefix}{child.name}/", child.result, child.bundle, child.folder)
            for child in children
            if child.result is not None
        ]


async def _write(merged: MergedResults, file: ScratchFile) -> str:
    """Write it; its SHA-256 in hex."""
    digest = hashlib.sha256()
    gone = partial(remove_quietly, file.path)
    async with opened(lambda: file.path.open("xb", buffering=0), gone) as out:

        def write(piece: bytes) -> None:
            file.reserve(len(piece))
            write_all(out.fileno(), piece)
            digest.update(piece)

        async for piece in merged.chunks():
            await to_end(partial(write, piece))
    return digest.hexdigest()
