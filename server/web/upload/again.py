"""A job's upload once more: its fields as somebody would type them, and its files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from server.domain.files import FileKind
from server.domain.jobs import Job
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from server.http.context import Context
from server.web.upload.page_form import FormerBundle
from shared.files.bundles.format import ENTRY
from shared.files.bundles.reader import BundleReader
from shared.files.errors import BundleError
from shared.settings.limits import FIELDS, SIZES
from shared.units.durations import parse_duration, say_duration
from shared.units.sizes import parse_size, say_size

_MAX_SCRIPT: Final = 64_000
"""Bytes of a ``run.sh`` that is shown to be edited; a field of a form may have little more."""


@dataclass(frozen=True, slots=True)
class FormerFiles:
    """What a job's bundle holds.

    Attributes:
        script: its run.sh; empty: it is no text, or too long to be edited in a page.
    """

    job_id: int
    count: int
    size: int
    script: str


@asynccontextmanager
async def former_bundle(context: Context, job: Job) -> AsyncIterator[FormerBundle | None]:
    """The bundle that the job ran; None: its files were removed."""
    bundle = None
    async with AsyncExitStack() as stack:
        if job.bundle is not None:
            copy = context.storage.local_copy(FileKind.BUNDLE, job.bundle.file)
            with contextlib.suppress(FileNotFoundError):
                bundle = FormerBundle(await stack.enter_async_context(copy), job.bundle_folder)
        yield bundle


async def former_files(context: Context, job: Job) -> FormerFiles | None:
    """None: they were removed, or cannot be read."""
    async with former_bundle(context, job) as bundle:
        if bundle is None:
            return None
        try:
            return await context.reads.run(_read, job.id, bundle.path, bundle.folder)
        except (BundleError, OSError):
            return None


def _read(job_id: int, path: Path, folder: str) -> FormerFiles:
    with BundleReader(path) as bundle:
        files = bundle.inside(folder)
        size = sum(one.size for one in files.values())
        script = ""
        entry = files.get(ENTRY)
        if entry is not None and entry.size <= _MAX_SCRIPT:
            content = b"".join(bundle.content(folder + ENTRY, _MAX_SCRIPT))
            if b"\0" not in content:
                try:
                    script = content.decode()
                except UnicodeDecodeError:
                    script = ""
        return FormerFiles(job_id, len(files), size, script)


async def fields_of(context: Context, job: Job) -> dict[str, str]:
    """The fields of an upload that asks for the same; what the service gives anyway is left out."""
    service = context.services.get(job.service)
    fields = {
        "user_id": job.user_id,
        "service": job.service,
        "name": job.name or "",
        "tags": ",".join(job.tags),
        "priority": str(job.priority or ""),
        "meta": job.meta or "",
        "after": ",".join(map(str, job.after)),
        "inputs_from": ",".join(map(str, job.inputs_from)),
        "outputs": ",".join(job.outputs),
        "result_files": "" if job.result_files == "all" else job.result_files,
        "callback_url": job.callback_url or "",
    }
    for name in ("queue_timeout", "heartbeat_timeout", "expires_after"):
        seconds = getattr(job, f"{name}_s")
        fields[name] = "" if seconds is None else _duration(seconds)
    if service is not None:
        fields |= _limits(job, service) | _retry(job.retry, service.retry)
    found = await context.jobs.batches_of([job.id])
    if (batch := found.get(job.id)) is not None and batch.ranges:
        if batch.array_file is None:
            fields["array"] = ",".join(_range(*one) for one in batch.ranges)
        fields["array_file"] = batch.array_file or ""
        fields["max_parallel"] = str(batch.max_parallel or "")
        fields["batch_policy"] = "fail_fast" if batch.fail_fast else ""
    return {name: text for name, text in fields.items() if text}


def _limits(job: Job, service: Service) -> dict[str, str]:
    fields = {}
    if job.timeout_s != service.timeout_s:
        fields["timeout"] = _duration(job.timeout_s)
    for name in FIELDS:
        value = getattr(job.limits, name)
        if value != getattr(service.limits, name):
            fields[name] = _size(value) if name in SIZES else f"{value:g}"
    return fields


def _retry(own: RetryPolicy | None, usual: RetryPolicy) -> dict[str, str]:
    if own is None:
        return {}
    shown: dict[str, Any] = {
        "retries": str(own.retries),
        "retry_on": ",".join(sorted(own.retry_on)),
        "no_retry_on": ",".join(sorted(own.no_retry_on)),
    }
    if own.backoff is None:
        shown["retry_delays"] = ",".join(map(_duration, own.delays_s))
    else:
        shown["backoff"] = own.backoff.value
        shown["retry_delay"] = _duration(own.delay_s)
        shown["max_retry_delay"] = _duration(own.max_delay_s)
    same = {"retries": own.retries == usual.retries}
    same |= {
        name: getattr(own, name) == getattr(usual, name) for name in ("retry_on", "no_retry_on")
    }
    same["retry_delays"] = usual.backoff is None and own.delays_s == usual.delays_s
    return {name: text for name, text in shown.items() if not same.get(name)}


def _range(first: int, last: int, step: int) -> str:
    text = str(first) if last == first else f"{first}-{last}"
    return f"{text}:{step}" if step != 1 and last != first else text


def _duration(seconds: float) -> str:
    """As it is written for people where that says all of it."""
    text = say_duration(seconds) or "0s"
    return (
        text if parse_duration(text) == seconds else f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    )


def _size(count: int) -> str:
    text = say_size(count)
    return text if parse_size(text) == count else f"{count}B"
