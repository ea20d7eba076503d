"""The form of an upload: its fields in groups, what each service offers in them, what the page has
beside them (a ``run.sh`` that was written there, the files of a former job), and a former job as
somebody would type it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from server.api.upload import FIELDS, CheckField, MakeSink, UploadForm
from server.domain.errors import BadField, NotAllowed
from server.domain.jobs import FileKind, Job
from server.domain.retry import RetryPolicy
from server.domain.service import Service
from server.http.context import Context
from server.http.params import Param
from server.store import batches
from server.web.operators.services import values_of
from server.web.site import FIELD as CSRF
from shared.files.bundles.format import ENTRY, BundleSummary
from shared.files.bundles.reader import BundleReader
from shared.files.names import BundleError
from shared.files.staged_file import ReserveSpace
from shared.multipart.parser import FilePart, FormLimits
from shared.multipart.sinks import BundleSink
from shared.settings.limits import FIELDS as OF_LIMITS
from shared.settings.limits import SIZES
from shared.units.durations import parse_duration, say_duration
from shared.units.sizes import parse_size, say_size

SCRIPT: Final = "script"
"""Text field that becomes the file ``run.sh``, where no such file is sent."""
KEEP: Final = "keep"
"""Text field: the files of the former bundle are sent along."""
FROM: Final = "from"
"""Parameter of the query: the job that it is of."""
_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class FormerBundle:
    """A stored bundle, or one folder of it, which ends in "/"."""

    path: Path
    folder: str


class PageForm(UploadForm):
    """Checks all fields before it refuses, so that each error stands beside its field.

    Attributes:
        typed: fields as they came.
        errors: field -> what is wrong with it.
    """

    own = frozenset({SCRIPT, KEEP, FROM, CSRF})

    def __init__(self, former: FormerBundle | None = None) -> None:
        """Args: former: whose files are sent along, if the form says so."""
        self._former = former
        self.typed: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self._first: BadField | NotAllowed | None = None
        self.choose_sink = self._choose_sink

    def take(self, name: str, value: str, check: CheckField) -> None:
        self.typed[name] = value
        if name in self.own:
            return
        try:
            check(name, value)
        except (BadField, NotAllowed) as problem:
            self.errors[name] = str(problem)
            self._first = self._first or problem

    def _choose_sink(self, fields: Mapping[str, str]) -> MakeSink:
        # The page's fields stand before its files: with the first file, all are there.
        if self._first is not None:
            raise self._first
        return functools.partial(_PageSink, fields, self._former)


class _PageSink(BundleSink):
    """Adds files at the end of the form."""

    def __init__(
        self,
        fields: Mapping[str, str],
        former: FormerBundle | None,
        path: Path,
        limits: FormLimits,
        reserve: ReserveSpace,
    ) -> None:
        super().__init__(path, limits, "filename", reserve=reserve)
        self._fields, self._former = fields, former
        self._names: set[str] = set()
        self._has_archive = False

    def begin(self, part: FilePart) -> None:
        self._has_archive = self._has_archive or self.expands(part)
        self._names.add(part.filename)
        super().begin(part)

    def finish(self) -> BundleSummary:
        # Browsers send line ends as CRLF, which no shell understands.
        text = self._fields.get(SCRIPT, "").replace("\r\n", "\n").replace("\r", "\n")
        if text.strip() and self._has_archive:
            why = (
                "an archive that is expanded brings its own run.sh: leave this empty, "
                "or send the archive as a file beside it"
            )
            raise BundleError("archive_and_script", why, SCRIPT)
        if text.strip() and not any(map(_is_entry, self._names)):
            self.begin(FilePart("file", ENTRY))
            self.write((text.rstrip("\n") + "\n").encode())
            self.end()
        if self._former is not None and self._fields.get(KEEP) and not self._has_archive:
            self._add(self._former)
        return super().finish()

    def _add(self, former: FormerBundle) -> None:
        """The files of the bundle that were not sent in another version."""
        try:
            bundle = BundleReader(former.path)
        except FileNotFoundError:
            why = "the files of the former job were removed meanwhile: send them all"
            raise BundleError("former_files_gone", why, KEEP) from None
        with bundle:
            for name in bundle.inside(former.folder):
                if name not in self._names:
                    self.begin(FilePart("file", name))
                    for piece in bundle.content(former.folder + name, _CHUNK):
                        self.write(piece)
                    self.end()


def _is_entry(name: str) -> bool:
    """At the root, or in the one folder that may stand around all files."""
    folder, _, last = name.rpartition("/")
    return last == ENTRY and "/" not in folder


MAIN: Final = ("name", "tags")
LIMITS: Final = ("timeout", "cpus", "memory", "pids", "disk")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "When it starts": ("priority", "not_before", "queue_timeout", "after", "inputs_from"),
    "If it fails": (
        "heartbeat_timeout",
        "retries",
        "retry_delays",
        "backoff",
        "retry_delay",
        "max_retry_delay",
        "retry_on",
        "no_retry_on",
    ),
    "Many at once": ("array", "array_file", "max_parallel", "batch_policy"),
    "Its result": ("outputs", "result_files", "expires_after", "callback_url", "meta"),
}
"""Rare ones, which are shown on demand."""
_LABELS: Final[Mapping[str, str]] = {
    "array": "Array of tasks",
    "array_file": "Array from a file",
    "callback_url": "Address to post its end to",
    "cpus": "CPUs",
    "expires_after": "Keep for",
    "heartbeat_timeout": "Longest silence",
    "inputs_from": "Inputs from jobs",
    "after": "After jobs",
    "max_parallel": "Children at once",
    "meta": "Metadata",
    "outputs": "Files of the result",
    "pids": "Processes",
    "queue_timeout": "Longest wait",
    "result_files": "Which files",
    "timeout": "Time limit",
    "user_id": "User",
}


INPUTS: Final[Mapping[str, tuple[str, Param, tuple[str, ...]]]] = {
    name: (
        _LABELS.get(name, name.replace("_", " ").capitalize()),
        FIELDS[name],
        tuple(word for word in FIELDS[name].schema.get("enum", ()) if word),
    )
    for name in (*MAIN, *LIMITS, *(name for names in GROUPS.values() for name in names))
}
"""Name -> the label of the input, the field, and the words that it may be (none: any text): all
optional fields of an upload."""

_BACKOFF: Final = ("backoff", "retry_delay", "max_retry_delay")
_FIXED: Final = ("network", "log", "results")
"""Limits that an upload cannot ask for."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A service, as somebody sees it who may upload to it.

    Attributes:
        usual: field -> what holds where it is left empty, and mostly the most there is.
        note: what to know before anything is sent there.
    """

    name: str
    usual: Mapping[str, str]
    most_bytes: int
    note: str

    @classmethod
    def of(cls, service: Service, max_bytes: int, *, offered: bool) -> Offer:
        """Args:
        max_bytes: of any upload to this server.
        offered: some agent takes its jobs now.
        """
        note = ""
        if service.paused:
            note = f"It is paused: {service.paused_message}" if service.paused_message else ""
            note = note or "It is paused: its jobs wait."
        elif not offered:
            note = "No agent takes its jobs now: they wait until one does."
        most = min(max_bytes, service.limits.disk)
        return cls(service.name, _usual(service), most, note)


def _usual(service: Service) -> dict[str, str]:
    found = {key.removeprefix("limits."): text for key, text in values_of(service).items()}
    found["retries"] += f", at most {service.max_retries}"
    for name in ("retry_delays",) if service.retry.backoff else _BACKOFF:
        found[name] = ""
    return {name: found[name] for name in (*INPUTS, *_FIXED) if name in found}


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
            copy = context.core.contents.local_copy(FileKind.BUNDLE, job.bundle)
            with contextlib.suppress(FileNotFoundError):
                bundle = FormerBundle(await stack.enter_async_context(copy), job.bundle_folder)
        yield bundle


async def former_files(context: Context, job: Job) -> FormerFiles | None:
    """None: they were removed, or cannot be read."""
    async with former_bundle(context, job) as bundle:
        if bundle is None:
            return None
        try:
            return await context.pools.reads.run(_read, job.id, bundle.path, bundle.folder)
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
    service = context.core.services.get(job.service)
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
    found = await context.core.database.read(batches.several, [job.id])
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
    for name in OF_LIMITS:
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
