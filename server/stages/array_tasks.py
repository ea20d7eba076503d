"""What only the bundle says of a batch: an array's tasks, and whether there is a gather.sh."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Final

from server.domain.errors import BadField
from server.domain.jobs import BatchRequest
from server.domain.upload_fields import UploadRequest, check_children
from shared.files.bundles.format import META, BundleSummary
from shared.files.bundles.lines import lines
from shared.files.bundles.reader import BundleReader
from shared.files.durable import remove_quietly, write_all
from shared.files.errors import BundleError
from shared.files.opened import opened

_CHUNK: Final = 1 << 18


async def with_tasks(request: UploadRequest, file: Path, bundle: BundleSummary) -> UploadRequest:
    """The request with an index for each line of its ``array_file``.

    Args:
        file: the sealed ZIP; it is written there, if it is in memory.

    Raises:
        BadField: there is no such file, or it holds no tasks, or too many; or the bundle has a
            file where the upload's ``meta`` goes.
        OSError
    """
    if request.meta is not None and bundle.has_meta:
        why = f"Invalid meta: the bundle has a file {META}, and that is where run.sh finds it"
        raise BadField("meta", "invalid_meta", why)
    batch = request.batch
    if batch is not None and batch.file is not None:
        try:
            if bundle.content is not None:
                await _write(bundle.content, file)
            count = await count_lines(file, batch.file, request.service.max_children)
        except BundleError as problem:
            raise _bad_file(str(problem)) from None
        if not count:
            raise _bad_file(f"{batch.file!r} has no lines, so there are no tasks")
        check_children("array_file", count, request.service)
        batch = dataclasses.replace(batch, ranges=((0, count - 1, 1),))
    if bundle.has_gather:
        batch = dataclasses.replace(batch or BatchRequest(()), has_gather=True)
    return request if batch is request.batch else dataclasses.replace(request, batch=batch)


async def _write(content: bytes, path: Path) -> None:
    def write() -> IO[bytes]:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("xb", buffering=0))
            write_all(file.fileno(), content)
            stack.pop_all()
            return file

    async with opened(write, partial(remove_quietly, path)):
        pass


async def count_lines(bundle: Path, name: str, most: int) -> int:
    """How many lines a file of a sealed bundle has; counts no further than ``most`` + 1.

    Raises:
        BundleError: there is no such file, or a line cannot be a task.
        OSError
    """

    def count() -> int:
        with BundleReader(bundle) as reader:
            try:
                content = reader.content(name, _CHUNK)
            except KeyError:
                raise BundleError("no_such_file", "the bundle has no such file", name) from None
            number = 0
            for number, _ in enumerate(lines(content, name), 1):
                if number > most:
                    break
            return number

    return await asyncio.to_thread(count)


def _bad_file(why: str) -> BadField:
    return BadField("array_file", "invalid_array_file", f"Invalid array_file: {why}")
