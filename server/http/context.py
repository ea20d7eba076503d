"""The composed server: what its parts share, and its stages by name. Handlers get it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Final

from aiohttp import web

from server.domain.errors import NotAllowed
from server.domain.jobs import Job
from server.domain.permits import Permits
from server.domain.webhooks import AllowedTargets
from server.fleet import Fleet
from server.health import Health
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
from server.loops import Supervisor
from server.reload import Reload
from server.settings.tables import ServerSettings
from server.stages.accept import Accept
from server.stages.agents import Agents
from server.stages.audit import AuditTrail
from server.stages.batches import Batches, Dependencies
from server.stages.bulk import Bulk
from server.stages.by_hand import Delete, RetryByHand
from server.stages.cancel import Cancel
from server.stages.clean import Clean, recover
from server.stages.deliver import Deliver
from server.stages.forget_user import ForgetUser
from server.stages.get import Get
from server.stages.poll import Poll
from server.stages.round import Round
from server.stages.schedules import Schedules
from server.stages.services import Services
from server.stages.sessions import Sessions
from server.stages.stage import Core
from server.stages.statistics import Statistics
from server.stages.tokens import Tokens
from server.stages.waiting import Waiting
from server.stages.webhooks import Webhooks
from server.store import batches
from server.store.data_folder import RecordKeeper
from server.store.identity import Identity
from server.webhooks.client import HttpWebhookClient
from shared.clock import Clock
from shared.http import authentication
from shared.http.authentication import PRINCIPAL
from shared.http.middleware import GATE
from shared.metrics import EventLoopLag
from shared.principals import Role
from shared.sqlite.database import Database
from shared.steady_clock import PersistentClock
from shared.wire import ChildCounts, JobDoc, QueueInfo

_REPORT_DELAY_S: Final = 0.05
"""What an agent says of an attempt that goes on is written so much later at most."""


class Context(Core):
    """Makes the parts of the server, each of what is shared and of those that it calls.

    Args:
        record: of the data folder.
        machine: the clocks of the machine.
        read: reads the settings again.
    """

    clock: PersistentClock
    database: Database
    services: Services

    def __init__(
        self,
        core: Core,
        identity: Identity,
        record: RecordKeeper,
        machine: Clock,
        read: Callable[[], ServerSettings],
    ) -> None:
        super().__init__(**vars(core))
        self.identity, self.version = identity, metadata.version("ferryman")
        self.record = record
        # Who may do something, and what they did.
        self.tokens = Tokens(self)
        self.known = authentication.Tokens({}, self.tokens)
        self.known.use_settings(self.settings.server)
        self.permits = Permits(identity.signing_key, self.tokens.revoked)
        self.sessions = Sessions(self, self.permits, self.tokens, self.known.digests)
        self.audit = AuditTrail(self)
        # From an upload to its end.
        self.accept = Accept(self)
        self.get = Get(self, report_delay_s=_REPORT_DELAY_S)
        self.poll = Poll(self, self.get)
        self.deliver = Deliver(self, self.get)
        self.round = Round(self, self.deliver, self.get)
        self.cancel = Cancel(self, self.get)
        self.delete = Delete(self, self.cancel)
        self.retry = RetryByHand(self)
        self.bulk = Bulk(self, self.retry, self.delete)
        self.batches, self.dependencies = Batches(self), Dependencies(self)
        self.schedules = Schedules(self, self.accept, rehearsal=identity.rehearsal)
        self.receivers = HttpWebhookClient(
            AllowedTargets(self.settings.server.webhook_allow or ()), self.clock
        )
        self.webhooks = Webhooks(self, self.receivers, identity, machine)
        self.clean = Clean(self, self.delete)
        self.statistics = Statistics(self)
        self.waiting = Waiting(self, self.statistics, self.get.results)
        self.forget_user = ForgetUser(self, self.delete, self.schedules, self.tokens, self.audit)
        # The agents, and how everything is.
        self.agents = Agents(self)
        self.connections = Fleet(self, identity, self.agents, self.deliver, self.poll, self.get)
        self.supervisor, self.lag = Supervisor(), EventLoopLag(self.clock)
        self.health = Health(self, self.supervisor, self.clean, self.get.results)
        self.reload = Reload(
            self.settings, read, self.connections, self.services, self.known, self.tokens
        )
        # What callers share.
        self.reads, self.snapshots = Reads(), Snapshots(self.scratch, self.clock)
        self.uploads, self.upload_threads = UploadLimits(self.clock, self.settings), UploadThreads()
        self.event_reads = SharedReads[Messages]()
        """Of those who follow the events of all jobs."""
        self.name_reads = SharedReads[Names | None]()
        """Of those who want the names in a large result."""

    async def load(self) -> None:
        """Take up what is in the database. Raises ValueError."""
        await self.tokens.load()
        await self.sessions.load()
        await self.services.read()
        await self.schedules.load()
        await recover(self.database, self.scratch)
        await self.connections.apply(self.settings.agents)
        await self.services.left()

    async def close(self) -> None:
        """Threads and connections."""
        self.reads.close()
        self.upload_threads.close()
        await self.receivers.close()
        await self.connections.close()

    def still_accepted(self, request: web.Request) -> bool:
        """Whether the token or link of a request that goes on for long is still good."""
        return request.app[GATE].principal(request).authenticated

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
        if without_id and not self.still_accepted(request):
            raise NotAllowed(
                f"{principal.name} is not accepted any more: the settings were changed, or the "
                "session ended, while this upload was under way"
            )

    async def documents(self, jobs: Sequence[Job]) -> list[JobDoc]:
        """The jobs as lists show them, those that wait with the reason."""
        queue = await self.waiting(jobs, in_list=True)
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
        return documents.job_doc(job, service, queue, self.settings.server.url_prefix, batch)
