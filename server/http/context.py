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
from server.http.reads import Pools
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
from server.store.data_folder import OpenedData
from server.store.identity import Identity
from server.webhooks.client import HttpWebhookClient
from shared.clock import Clock
from shared.http import authentication
from shared.http.authentication import PRINCIPAL
from shared.http.middleware import GATE
from shared.metrics import EventLoopLag
from shared.principals import Role
from shared.wire import ChildCounts, JobDoc, QueueInfo

_REPORT_DELAY_S: Final = 0.05
"""What an agent says of an attempt that goes on is written so much later at most."""


class Access:
    """Who may do something, and what they did."""

    def __init__(self, core: Core, identity: Identity) -> None:
        self.tokens = Tokens(core)
        self.known = authentication.Tokens({}, self.tokens)
        self.known.use_settings(core.settings.server)
        self.permits = Permits(identity.signing_key, self.tokens.revoked)
        self.sessions = Sessions(core, self.permits, self.tokens, self.known.digests)
        self.audit = AuditTrail(core)

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


class Stages:
    """What is done with jobs, from an upload to its end, and what goes with it. Each stage is made
    of what all share, and of the stages that it calls.

    Args:
        machine: the clocks of the machine.
    """

    def __init__(
        self, core: Core, services: Services, access: Access, identity: Identity, machine: Clock
    ) -> None:
        self.services = services
        self.accept = Accept(core)
        self.get = Get(core, report_delay_s=_REPORT_DELAY_S)
        self.poll = Poll(core, self.get)
        self.deliver = Deliver(core, self.get)
        self.round = Round(core, self.deliver, self.get)
        self.cancel = Cancel(core, self.get)
        self.delete = Delete(core, self.cancel)
        self.retry = RetryByHand(core)
        self.bulk = Bulk(core, self.retry, self.delete)
        self.batches, self.dependencies = Batches(core), Dependencies(core)
        self.schedules = Schedules(core, self.accept, rehearsal=identity.rehearsal)
        self.receivers = HttpWebhookClient(
            AllowedTargets(core.settings.server.webhook_allow or ()), core.clock
        )
        self.webhooks = Webhooks(core, self.receivers, identity, machine)
        self.clean = Clean(core, self.delete)
        self.statistics = Statistics(core)
        self.waiting = Waiting(core, self.statistics, self.get.results)
        self.forget_user = ForgetUser(
            core, self.delete, self.schedules, access.tokens, access.audit
        )
        self.agents = Agents(core)


class Context:
    """All parts of the server, made of the core: what stages and handlers work with.

    Args:
        data: what was opened in the data folder.
        machine: the clocks of the machine.
        read: reads the settings again.

    Attributes:
        core: what all parts work with.
        pools: what callers share.
        fleet: the connections to the agents.
    """

    def __init__(
        self,
        core: Core,
        services: Services,
        data: OpenedData,
        machine: Clock,
        read: Callable[[], ServerSettings],
    ) -> None:
        self.core, self.data, identity = core, data, data.identity
        self.version = metadata.version("ferryman")
        self.access = Access(core, identity)
        self.stages = stages = Stages(core, services, self.access, identity, machine)
        self.fleet = Fleet(core, identity, stages.agents, stages.deliver, stages.poll, stages.get)
        self.supervisor, self.lag = Supervisor(), EventLoopLag(core.clock)
        self.health = Health(core, self.supervisor, stages.clean, stages.get.results)
        self.reload = Reload(
            core.settings, read, self.fleet, services, self.access.known, self.access.tokens
        )
        self.pools = Pools(core.scratch, core.clock, core.settings)

    async def load(self) -> None:
        """Take up what is in the database. Raises ValueError."""
        await self.access.tokens.load()
        await self.access.sessions.load()
        await self.stages.services.read()
        await self.stages.schedules.load()
        await recover(self.core.database, self.core.scratch)
        await self.fleet.apply(self.core.settings.agents)
        await self.stages.services.left()

    async def close(self) -> None:
        """Threads and connections."""
        self.pools.close()
        await self.stages.receivers.close()
        await self.fleet.close()

    async def documents(self, jobs: Sequence[Job]) -> list[JobDoc]:
        """The jobs as lists show them, those that wait with the reason."""
        queue = await self.stages.waiting(jobs, in_list=True)
        counts = await self.children_of(jobs)
        return [self.document(job, queue.get(job.id), counts.get(job.id)) for job in jobs]

    async def children_of(self, jobs: Sequence[Job]) -> dict[int, ChildCounts]:
        """What became of the children of those that have some."""
        found = await self.core.database.read(batches.several, [job.id for job in jobs])
        parents = {parent: batch for parent, batch in found.items() if batch.total}
        unended = [parent for parent, batch in parents.items() if batch.ended < batch.made]
        active = await self.core.database.read_list(batches.active_children, unended)
        return {
            parent: documents.child_counts(batch, active.get(parent, 0))
            for parent, batch in parents.items()
        }

    def document(
        self, job: Job, queue: QueueInfo | None = None, batch: ChildCounts | None = None
    ) -> JobDoc:
        """The job as it is shown."""
        service = self.core.services.get(job.service)
        return documents.job_doc(job, service, queue, self.core.settings.server.url_prefix, batch)
