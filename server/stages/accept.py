"""Upload → Queued: an upload that was answered with 201 is never lost.

A large bundle is stored before the job exists, so a crash leaves an orphan file, never a job
without its bundle; a small one is a row of the job's transaction.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from server.domain import access
from server.domain.errors import BundleGone, BundleTooLarge, KeyReused, invalid
from server.domain.jobs import ROW_BYTES, BatchRequest, Bundle, FileKind, Job, NewJob, Wanted
from server.domain.permits import Ticket, TicketUsed
from server.domain.upload_fields import UploadRequest, check_children
from server.stages.array_lines import array_lines
from server.stages.stage import Stage
from server.storage.contents import memory_file
from server.storage.scratch import ScratchFile
from server.store import bundles, requests, tokens
from shared.clock import Micros
from shared.files.bundles.format import META, BundleSummary
from shared.files.names import BundleError
from shared.files.opened import to_end
from shared.principals import Principal
from shared.units.sizes import parse_size


async def with_tasks(request: UploadRequest, file: Path, bundle: BundleSummary) -> UploadRequest:
    """The request with an index for each line of its ``array_file``.

    Args:
        file: the sealed ZIP, unless it is in memory.

    Raises:
        BadField: there is no such file, or it holds no tasks, or too many; or the bundle has a
            file where the upload's ``meta`` goes.
        OSError
    """
    if request.meta is not None and bundle.has_meta:
        raise invalid("meta", f"the bundle has {META}, and that is where run.sh finds it")
    batch = request.batch
    if batch is not None and batch.array_file is not None:
        try:
            most = request.service.max_children
            count = await _count_lines(file, batch.array_file, most, bundle.content)
        except BundleError as problem:
            raise invalid("array_file", str(problem)) from None
        if not count:
            raise invalid("array_file", f"{batch.array_file!r} has no lines, so there are no tasks")
        check_children("array_file", count, request.service)
        batch = dataclasses.replace(batch, ranges=((0, count - 1, 1),))
    if bundle.has_gather:
        batch = dataclasses.replace(batch or BatchRequest(), has_gather=True)
    return request if batch is request.batch else dataclasses.replace(request, batch=batch)


async def _count_lines(bundle: Path, name: str, most: int, content: bytes | None) -> int:
    """How many lines a file of a sealed bundle has; counts no further than ``most`` + 1. Raises as
    :func:`array_lines`. ``content``: of the bundle, if it is in memory and not in the file.
    """

    def count(path: Path) -> int:
        return sum(1 for _ in itertools.islice(array_lines(path, name), most + 1))

    if content is None:
        return await to_end(partial(count, bundle))
    with memory_file(content) as path:
        return await to_end(partial(count, path))


Row = TypeVar("Row")
QUEUED: Final = "Job successfully uploaded"


class Accept(Stage):
    """Checks what an upload asks for, and queues it."""

    def too_large(self, fields: Mapping[str, str]) -> BundleTooLarge | None:
        """The refusal of a bundle with more bytes than its ``most``, as far as that is known."""
        service = self.core.services.get(fields.get("service", ""))
        if service is None:
            return None
        most = service.limits.disk
        if asked := fields.get("disk"):
            most = min(most, parse_size(asked))
        return BundleTooLarge(service.name, service.limits.disk, most)

    async def check_ticket(self, ticket: Ticket, idempotency_key: str | None) -> None:
        """Refuse early a ticket that was used before. The insert looks again, in its transaction.
        Raises TicketUsed.
        """
        if await self.core.database.read(tokens.ticket_used, ticket.id) and not (
            await self._is_repeat(ticket.user_id, idempotency_key)
        ):
            raise TicketUsed

    async def _is_repeat(self, user: str, key: str | None) -> bool:
        """Whether it is an accepted upload once more, which is no new job."""
        if key is None:
            return False
        return await self.core.database.read(requests.job_of_key, user, key) is not None

    async def check_quota(self, request: UploadRequest, size: int) -> None:
        """Refuse early when the user has as many jobs queued as the service allows, or as many
        bytes stored as the server allows. The insert counts again, in its transaction.

        Args:
            size: bytes of the upload, as far as they are known.

        Raises:
            OverQuota
        """
        user, service = request.user_id, request.service
        most = self.core.settings.allowances.quota(service, user)
        if not any(most) or await self._is_repeat(user, request.idempotency_key):
            return
        tasks = 0 if request.batch is None else request.batch.tasks
        of = (user, service.name, size, self.core.clock.now(), tasks)
        await self.core.database.write(requests.check_quota, most, *of)

    async def __call__(
        self,
        principal: Principal,
        request: UploadRequest,
        content: ScratchFile,
        bundle: BundleSummary,
        ticket: Ticket | None = None,
    ) -> tuple[Job, bool]:
        """Queue a bundle whose content is whole, and synced or in memory.

        Args:
            ticket: by which it was uploaded.

        Returns:
            The job, and whether it is new (False: a repeat under the same Idempotency-Key).

        Raises:
            BadField: the bundle does not have the array's file, or that holds no tasks.
            BundleTooLarge, OverQuota, KeyReused, OSError, TicketUsed
            BadField: it depends on a job that the caller cannot see.
        """
        check_size(request, bundle)
        request = await with_tasks(request, content.path, bundle)
        warnings = (*bundle.warnings, *self._not_offered(request), *self._not_chosen(request))

        most = self.core.settings.allowances.quota(request.service, request.user_id)
        visible = access.visible(principal)

        async def insert(stored: Bundle) -> tuple[tuple[Job, bool], Bundle | None]:
            now, by = self.core.clock.now(), principal.name
            new = new_job(request, stored, now, by, warnings=warnings, ticket=ticket)
            row = await self.core.database.write(requests.insert_job, new, QUEUED, most, visible)
            return row, row[0].bundle

        job, is_new = await self.store(content, bundle, insert)
        if not is_new and not visible.has(job):
            raise KeyReused(None)
        if not is_new and (
            (job.bundle and job.bundle.digest != bundle.digest)
            or job.service != request.service.name
        ):
            raise KeyReused(job.id)
        if is_new:
            size = job.bundle.size if job.bundle else 0
            self.core.measures.jobs.uploaded(job.created_at, job.service, size=size)
        return job, is_new

    def _not_offered(self, request: UploadRequest) -> tuple[str, ...]:
        """A warning where no agent has the service."""
        name = request.service.name
        if self.core.registry.offered(name):
            return ()
        return (f"no agent offers the service {name}: the job waits until one does",)

    def _not_chosen(self, request: UploadRequest) -> tuple[str, ...]:
        """A warning where nobody can leave files out of a result."""
        chooses = bool(request.outputs) or request.result_files != "all"
        agents = self.core.registry.all()
        if not chooses or not agents or any(agent.supports_events for agent in agents):
            return ()
        return (
            "outputs and result_files: the result has what a job-orchestrator client gives back, "
            "because this server has no other agents",
        )

    async def store(
        self,
        content: ScratchFile,
        bundle: BundleSummary,
        insert: Callable[[Bundle], Awaitable[tuple[Row, Bundle | None]]],
    ) -> Row:
        """Store a bundle, unless one with the same content is there, and insert a row.

        Args:
            insert: gives the row, and its bundle: this one, or that of an earlier upload. Raises
                BundleGone: it was given one without a file, and there is none with that content.
        """
        without_file = Bundle("", bundle.size, bundle.digest, bundle.own_modes)
        shares, of = bundle.size > ROW_BYTES and not bundle.own_modes, (bundle.digest, bundle.size)
        if shares and await self.core.database.read(bundles.can_share, *of):
            with suppress(BundleGone):  # it was removed a moment ago: store this one
                return (await insert(without_file))[0]
        async with self.core.storage.pending(FileKind.BUNDLE) as pending:
            whole = content if bundle.content is None else bundle.content
            file, few = await self.core.contents.keep(pending, whole, bundle.size)
            row, kept = await insert(dataclasses.replace(without_file, file=file, content=few))
            if kept is not None and kept.file == file:
                pending.commit()
        return row


def check_size(request: UploadRequest, bundle: BundleSummary) -> None:
    """Raises BundleTooLarge."""
    if bundle.bytes > request.limits.disk:
        service, most = request.service, request.limits.disk
        raise BundleTooLarge(service.name, service.limits.disk, most, bundle.bytes)


def new_job(
    request: UploadRequest,
    bundle: Bundle,
    now: Micros,
    submitted_by: str | None,
    *,
    warnings: tuple[str, ...] = (),
    schedule_id: int | None = None,
    ticket: Ticket | None = None,
) -> NewJob:
    """The job that an upload asks for.

    Args:
        warnings: about the bundle.
    """
    wanted = {one.name: getattr(request, one.name) for one in dataclasses.fields(Wanted)}
    return NewJob(
        request.user_id,
        request.service.name,
        bundle,
        request.limits,
        request.timeout_s,
        now,
        submitted_by,
        not_before=request.not_before.from_now(now) if request.not_before else 0,
        schedule_id=schedule_id,
        idempotency_key=request.idempotency_key,
        ticket=ticket,
        batch=request.batch,
        **wanted | {"upload_warnings": (*request.upload_warnings, *warnings)},
    )
