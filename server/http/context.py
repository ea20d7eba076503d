"""What the handlers work with; the composition root puts one into the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from aiohttp import web

from server.domain.allowances import Allowances
from server.domain.errors import NotAllowed
from server.domain.jobs import Job
from server.domain.permits import Permits
from server.domain.troubles import Trouble
from server.http import documents
from server.http.reads import (
    Messages,
    Names,
    Reads,
    SharedReads,
    Snapshots,
    UploadLimits,
    UploadThreads,
)
from server.ports import Fleet, Measures, Scratch, Storage, Vitals, Watch
from server.stages.accept import Accept
from server.stages.agents import Agents
from server.stages.audit import AuditTrail
from server.stages.bulk import Bulk
from server.stages.by_hand import Delete, RetryByHand
from server.stages.cancel import Cancel
from server.stages.forget_user import ForgetUser
from server.stages.results import WaitingResults
from server.stages.schedules import Schedules
from server.stages.services import Services
from server.stages.sessions import Sessions
from server.stages.statistics import Statistics
from server.stages.tokens import Tokens
from server.stages.waiting import why_waiting
from server.stages.webhooks import Webhooks
from server.store import batches
from shared.clock import Clock
from shared.http.authentication import PRINCIPAL
from shared.multipart.parser import FormLimits
from shared.principals import Principal, Role
from shared.sql import Database
from shared.wire import ChildCounts, JobDoc, QueueInfo, Reloaded


@dataclass(frozen=True, slots=True)
class Context:
    form_limits: FormLimits
    token_needed: Callable[[], bool]
    """Whether a request without a token is refused."""
    public_url: str | None
    """Scheme and host that browsers know us by; None: those of the request."""
    return_origins: frozenset[str]
    """Where a form that was posted with a ticket may be sent on to."""
    reload: Callable[[], Awaitable[Reloaded]]
    """Reads the settings again; raises NotReloaded."""
    database: Database
    storage: Storage
    scratch: Scratch
    fleet: Fleet
    agents: Agents
    services: Services
    statistics: Statistics
    allowances: Allowances
    watch: Watch
    clock: Clock
    accept: Accept
    cancel: Cancel
    schedules: Schedules
    tokens: Tokens
    sessions: Sessions
    token_holder: Callable[[str, str], Principal]
    """Whose token a text is, by the address that sent it; without a role if it is not good."""
    audit: AuditTrail
    webhooks: Webhooks
    delete: Delete
    retry: RetryByHand
    forget_user: ForgetUser
    bulk: Bulk
    upload_limits: UploadLimits
    upload_threads: UploadThreads
    results_waiting: WaitingResults
    """For room on the disk."""
    snapshots: Snapshots
    troubles: Callable[[], Awaitable[list[Trouble]]]
    """What is wrong now; empty: all is well."""
    files_to_look_at: Callable[[], list[Trouble]]
    """What an operator should look at."""
    vitals: Callable[[], Awaitable[Vitals]]
    """How the server's parts are."""
    version: str
    waiting: Callable[[web.Request], AbstractContextManager[None]]
    """Around a request's wait; refuses where too many wait."""
    accepts: Callable[[web.Request], bool]
    """Whether the token, ticket or link of a request is good now."""
    permits: Permits
    measures: Measures
    reads: Reads
    url_prefix: str = ""
    """Path below which a proxy shows us."""
    event_reads: SharedReads[Messages] = field(default_factory=SharedReads)
    """Of those who follow the events of all jobs."""
    name_reads: SharedReads[Names | None] = field(default_factory=SharedReads)
    """Of those who want the names in a large result."""

    def still_accepted(self, request: web.Request) -> bool:
        """Whether the token or link of a request that goes on for long is still good."""
        return self.accepts(request)

    def check_not_revoked(self, request: web.Request) -> None:
        """Before something is made of an upload that took long. A ticket or token that was good
        when it began may end meanwhile, but not be revoked or taken out of the settings. Raises
        NotAllowed.
        """
        principal = request[PRINCIPAL]
        if principal.token_id is not None and self.tokens.revoked(principal.token_id):
            raise NotAllowed(
                f"the token of {principal.name} was revoked while this upload was under way"
            )
        without_id = principal.token_id is None and principal.role is not Role.TICKET
        if without_id and not self.accepts(request):
            raise NotAllowed(
                f"{principal.name} is not accepted any more: the settings were changed, or the "
                "session ended, while this upload was under way"
            )

    async def queue_of(self, jobs: Sequence[Job], *, in_list: bool = False) -> dict[int, QueueInfo]:
        """Why those of the jobs that wait do."""
        now = self.clock.now()
        return await why_waiting(
            *(jobs, self.services, self.database, self.fleet, now, self.statistics.recent),
            in_list=in_list,
            disk_full=self.results_waiting,
        )

    async def documents(self, jobs: Sequence[Job]) -> list[JobDoc]:
        """The jobs as lists show them, those that wait with the reason."""
        queue = await self.queue_of(jobs, in_list=True)
        counts = await self.children_of(jobs)
        return [self.document(job, queue.get(job.id), counts.get(job.id)) for job in jobs]

    async def children_of(self, jobs: Sequence[Job]) -> dict[int, ChildCounts]:
        """What became of the children of those that have some."""
        found = await self.database.read(batches.several, [job.id for job in jobs])
        parents = {parent: batch for parent, batch in found.items() if batch.total}
        unended = [parent for parent, batch in parents.items() if batch.ended < batch.made]
        active = await self.database.read_list(batches.active_children, unended)
        return {
            parent: documents.child_counts(batch, active.get(parent, 0))
            for parent, batch in parents.items()
        }

    def document(
        self, job: Job, queue: QueueInfo | None = None, batch: ChildCounts | None = None
    ) -> JobDoc:
        """The job as it is shown."""
        service = self.services.get(job.service)
        return documents.job_doc(job, service, queue, self.url_prefix, batch)
