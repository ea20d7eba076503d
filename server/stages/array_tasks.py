"""What only the bundle says of a batch: an array's tasks, and whether there is a gather.sh."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from server.domain.errors import BadField
from server.domain.jobs import BatchRequest
from server.domain.upload_fields import UploadRequest, check_children
from server.stages import fan_out
from shared.files.errors import BundleError


async def with_tasks(request: UploadRequest, bundle: Path, *, has_gather: bool) -> UploadRequest:
    """The request with an index for each line of its ``array_file``.

    Args:
        bundle: the sealed ZIP.
        has_gather: it has a gather.sh.

    Raises:
        BadField: there is no such file, or it holds no tasks, or too many.
    """
    batch, count = request.batch, 0
    if batch is not None and batch.file is not None:
        try:
            count = await fan_out.count_lines(bundle, batch.file, request.service.max_children)
        except BundleError as problem:
            raise _bad_file(str(problem)) from None
        if not count:
            raise _bad_file(f"{batch.file!r} has no lines, so there are no tasks")
    return with_counted_tasks(request, count, has_gather=has_gather)


def with_counted_tasks(request: UploadRequest, count: int, *, has_gather: bool) -> UploadRequest:
    """The same, where it is known how many lines the ``array_file`` has.

    Raises:
        BadField: there are too many.
    """
    batch = request.batch
    if batch is not None and batch.file is not None:
        check_children("array_file", count, request.service)
        batch = dataclasses.replace(batch, ranges=((0, count - 1, 1),))
    if has_gather:
        batch = dataclasses.replace(batch or BatchRequest(()), has_gather=True)
    return dataclasses.replace(request, batch=batch)


def _bad_file(why: str) -> BadField:
    return BadField("array_file", "invalid_array_file", f"Invalid array_file: {why}")
