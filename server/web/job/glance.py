"""What the first page of a job shows of its log and of its files: a few lines, a few names."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from markupsafe import Markup

from server.domain.attempts import Attempt
from server.domain.errors import FerrymanError
from server.domain.jobs import Job
from server.http.context import Context
from server.http.log_source import has_started, opened_log
from server.http.problems import Refusal
from server.http.stored_files import scan_first
from server.http.stored_log import STREAMS
from server.web.job.files.folder import FolderPage, folder_page
from server.web.job.log.lines import Lines
from shared.wire import JobState

_LINES: Final = 8
_BYTES: Final = 4096
"""Of the end of a log, in which its last lines are looked for."""
_PATIENCE_S: Final = 0.5
"""With an agent: the page has more to say than this."""
_FILES: Final = 5
_LISTED: Final = 500
"""Files of a result among which the first are looked for."""


async def last_lines(context: Context, job: Job, attempt: Attempt | None) -> list[Markup]:
    """Of the output of an attempt that runs; empty where its agent does not show it now."""
    if job.state is not JobState.RUNNING or attempt is None or not has_started(job, attempt):
        return []
    try:
        async with (
            asyncio.timeout(_PATIENCE_S),
            opened_log(context, job, attempt, STREAMS[0]) as (size, read),
        ):
            start, data = max(0, size - _BYTES), b""
            if not size:
                return []
            async with aclosing(read(start, size)) as chunks:
                async for chunk in chunks:
                    data += chunk
                    if len(data) >= size - start:
                        break
    except (FerrymanError, Refusal, TimeoutError):
        return []
    if start:
        data = data.partition(b"\n")[2] or data
    lines = Lines(commands=True)
    rows = lines.feed(data)
    rest = lines.unfinished()
    return [one.text for one in [*rows, *([rest] if rest else [])][-_LINES:]]


async def first_files(context: Context, job: Job, attempt: Attempt | None) -> FolderPage | None:
    """Of the stored result of the latest attempt; None: there is none that can be read."""
    if not job.ended or attempt is None or attempt.result is None:
        return None
    try:
        return await scan_first(
            context, job, attempt, _LISTED, lambda some: folder_page(some, "", "", "", _FILES)
        )
    except (FerrymanError, Refusal):
        return None
