"""Composition root: makes all parts of the server and connects them."""

from __future__ import annotations

import asyncio
import functools
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import metadata
from typing import Final

import structlog
from aiohttp import web

from server.agents.agent_client import AgentClient
from server.agents.registry import Registry
from server.api.routes import OPEN_PATHS, add_routes
from server.callers import callers, rate_limits
from server.data_folder import UNKNOWN, database_path, lock_folder, open_data
from server.domain.webhook_targets import AllowedTargets
from server.domain.webhooks import secret_bytes, secret_text
from server.fleet import Fleet, agent_sessions
from server.health import Health
from server.http.context import Context
from server.http.problems import problems
from server.http.reads import Reads, Snapshots, UploadLimits, UploadThreads
from server.loops.runner import Loop, Supervisor, Sweep
from server.loops.wakeups import JobWakeups
from server.metrics import ServerMetrics
from server.ports import Measures
from server.reload import Reload
from server.settings.load import check_change, in_file, of_record
from server.settings.tables import ServerSettings
from server.settings.users import allowances
from server.stages.accept import Accept
from server.stages.agents import Agents
from server.stages.batches import Batches, Dependencies
from server.stages.bulk import Bulk
from server.stages.by_hand import Delete, RetryByHand
from server.stages.cancel import Cancel
from server.stages.clean import Clean, recover
from server.stages.deliver import Deliver
from server.stages.forget_user import ForgetUser
from server.stages.get import Get
from server.stages.poll import Poll
from server.stages.schedules import Schedules
from server.stages.send import Send
from server.stages.services import Services, gone
from server.stages.stage import Resources
from server.stages.statistics import Statistics
from server.stages.tokens import USES_EVERY_S
from server.stages.webhooks import Webhooks
from server.storage.folder import FolderStorage
from server.storage.scratch import Scratch
from server.store.identity import csrf_key, is_rehearsal, new_start, server_identity, webhook_secret
from server.store.statements import Listener
from server.web import routes as pages
from server.web.site import CsrfTokens, LoginTries, Site, error_page
from server.webhooks.client import HttpWebhookClient
from shared.clock import Clock, RealClock
from shared.http.connections import ConnectionLimits, connection_limits
from shared.http.measured import METRICS
from shared.http.middleware import Gate, add_middlewares
from shared.http.origins import normal_origin
from shared.http.protocol import UnreadAnswers
from shared.metrics import EventLoopLag
from shared.multipart.parser import FormLimits
from shared.principals import Principal
from shared.wire import JobsLeft, JobState, Reloaded

log: structlog.stdlib.BoundLogger = structlog.get_logger()
_FORM_BYTES: Final = 256 << 10
"""Of a form of a page without files: to read one takes a millisecond for each 5 KiB."""
_REPORT_DELAY_S: Final = 0.05
"""What an agent says of an attempt that goes on is written so much later at most."""
_UPLOADS_CHECKED_S: Final = 5.0
"""Between two looks for uploads that are too slow."""
_AGENTS_EVERY_S: Final = 10.0
"""Between two writes of for how long agents were unreachable."""
_AUDIT_EVERY_S: Final = 0.4
"""Between two writes of the audit trail."""
_PROGRESS_EVERY_S: Final = 0.4
"""Between two writes of what running jobs say. An agent reports it twice a second, and it is to be
seen within one."""
_DEPENDENCIES_EVERY_S: Final = 10.0
"""Between two looks for dependencies on jobs that no move has ended."""
_CANCEL_AGAIN_S: Final = 5.0
"""Until a cancel is tried again whose agent could not be reached."""
_AT_LEAST_EVERY_S: Final = 60.0
"""Between two looks for schedules and webhooks where none is due, and two samples for charts."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server whose parts are connected.

    Attributes:
        reload: has the settings that it uses, and reads them again.
        supervisor: its loops, to be started and stopped.
    """

    reload: Reload
    application: web.Application
    supervisor: Supervisor
    wakeups: JobWakeups
    gate: Gate
    context: Context
    fleet: Fleet

    @property
    def clients(self) -> Mapping[str, AgentClient]:
        """Agent -> what calls it."""
        return self.fleet.clients


async def compose(
    settings: ServerSettings,
    stack: AsyncExitStack,
    machine: Clock | None = None,
    limits: Callable[[ServerSettings], ConnectionLimits] = lambda _: connection_limits(1024),
    principals: Mapping[str, Principal] | None = None,
    read: Callable[[], ServerSettings] | None = None,
    *,
    locked: bool = False,
    new_database: bool = False,
) -> Server:
    """Open everything and put it together; the stack closes it again.

    Args:
        machine: the clocks of the machine.
        limits: how many connections and requests fit.
        principals: token -> whose it is, in place of the operators' in the settings.
        read: reads the settings again; None: they stay.
        locked: the lock of the data folder is held already.
        new_database: see :func:`server.data_folder.open_data`.

    Raises:
        WrongDatabase, FolderInUse, DatabaseUnavailable, OSError, ValueError: why it cannot be
            opened.
    """
    table = settings.server
    machine = machine or RealClock()
    if not locked:
        lock_folder(table, stack)
    clock, database, keeper = await open_data(table, machine, stack, new_database=new_database)
    identity, former = await server_identity(database, secrets.token_hex(16))
    wakeups = JobWakeups(clock)
    start = await new_start(database, clock.now(), secrets.token_hex(8))
    new_name = functools.partial(secrets.token_hex, 16)
    min_free = table.least_free(shutil.disk_usage(table.data_dir).total)
    scratch = Scratch(table.data_dir / "staging", new_name, min_free)
    storage = FolderStorage(table.data_dir, scratch, new_name)

    who = await callers(table, database, clock, principals, identity)
    measures = Measures()
    sessions = await agent_sessions(storage, measures, stack)
    allowed = allowances(table, settings.users)
    services = Services(
        database,
        of_record,
        clock,
        in_file(settings),
        wakeups.services_changed,
    )
    await services.read()
    database.listener = Listener(wakeups.changed, wakeups.noted, measures.jobs.moved)
    registry = Registry([], clock)
    resources = Resources(
        database=database,
        storage=storage,
        scratch=scratch,
        fleet=registry,
        services=services,
        clock=clock,
        unreachable_after_s=table.agent_timeout,
        lost_after_s=table.agent_lost_after,
        measures=measures,
        report_delay_s=_REPORT_DELAY_S,
        hints=wakeups.hints,
    )
    agents = Agents(resources, database, on_change=wakeups.agent_changed)
    accept = Accept(resources, allowed)
    get = Get(resources, on_slot=wakeups.send)
    poll = Poll(resources, get)
    deliver = Deliver(resources, get)
    send = Send(resources, deliver, get, table.sender_interval)
    cancel = Cancel(resources, wakeups, get)
    schedules = Schedules(resources, database, accept, allowed, wakeups.schedules.set)
    await schedules.load()
    webhook_key = await webhook_secret(database, secret_text(secrets.token_bytes(32)))
    receivers = HttpWebhookClient(AllowedTargets(table.webhook_allow or ()), clock)
    stack.push_async_callback(receivers.close)
    webhooks = Webhooks(
        database,
        receivers,
        secret_bytes(webhook_key),
        clock,
        machine,
        server=identity,
        on_change=wakeups.webhooks.set,
        measures=measures,
        rehearsal=await is_rehearsal(database),
    )
    batches = Batches(resources, wakeups.batches.set)
    delete = Delete(resources, cancel)
    retry = RetryByHand(resources)
    statistics = Statistics(resources, database)
    clean = Clean(resources, delete.finish, wakeups.cleaner.set, keeper.keep)
    await recover(database, scratch)
    fleet = Fleet(
        registry,
        agents,
        get,
        sessions,
        (identity, former),
        start,
        clock,
        sending=deliver.stop,
        receiving=[poll.stop, get.stop],
        on_change=wakeups.agent_changed,
    )
    await fleet.apply(settings.agents)

    upload_limits = UploadLimits(clock, lambda user: allowed.of(user).uploads)
    upload_threads = UploadThreads()
    stack.callback(upload_threads.close)
    reads = Reads()
    stack.callback(reads.close)
    lag = EventLoopLag(clock)
    dependencies = Dependencies(resources, wakeups.dependencies.set)

    def loop(name: str, sweep: Sweep, every_s: float, wakeup: asyncio.Event | None = None) -> Loop:
        return Loop(name, sweep, every_s, wakeup or asyncio.Event(), clock)

    supervisor = Supervisor(
        [
            loop("sender", send, table.sender_interval, wakeups.sender),
            loop("progress", get.progress, _PROGRESS_EVERY_S),
            loop("getter", poll, table.getter_interval, wakeups.getter),
            loop("canceller", cancel, _CANCEL_AGAIN_S, wakeups.canceller),
            loop("agents", agents, _AGENTS_EVERY_S),
            loop("audit", who.audit, _AUDIT_EVERY_S),
            loop("tokens", who.tokens, USES_EVERY_S),
            loop("uploads", upload_limits, _UPLOADS_CHECKED_S),
            loop("dependencies", dependencies, _DEPENDENCIES_EVERY_S, wakeups.dependencies),
            loop("webhooks", webhooks, _AT_LEAST_EVERY_S, wakeups.webhooks),
            loop("batches", batches, table.sender_interval, wakeups.batches),
            loop("cleaner", clean, table.cleaner_interval, wakeups.cleaner),
            loop("statistics", statistics, _AT_LEAST_EVERY_S),
            loop("schedules", schedules, _AT_LEAST_EVERY_S, wakeups.schedules),
        ],
        [clock.keep_saved, lag.run, fleet.run],
        [
            webhooks.stop,
            deliver.stop,
            cancel.stop,
            poll.stop,
            get.stop,
            agents.stop,
            statistics.stop,
            who.tokens.write_uses,
            who.audit.stop,
        ],
    )
    waiting = get.results.waiting
    health = Health(
        database,
        scratch,
        supervisor,
        min_free,
        lambda: waiting.sentence() if waiting.hold_uploads(registry) else "",
        clock,
        aside=table.data_dir / UNKNOWN,
        unknown=lambda: clean.orphans_left,
    )
    gate = Gate(
        table,
        limits(settings),
        OPEN_PATHS | pages.OPEN_PATHS,
        open_forms=pages.OPEN_FORMS,
        id_field="job_id",
        origins=table.allowed_origins or (),
        proxies=table.trusted_proxies or (),
        tokens=who.known,
        rates=rate_limits(allowed, clock),
        signed=who.shown,
        audit=who.recorder,
        transfers=measures.transfers,
        unread=UnreadAnswers(),
    )

    def use_services(new: ServerSettings) -> None:
        allowed.use(allowances(new.server, new.users))
        services.use_file(in_file(new), allowed)

    async def use(new: ServerSettings) -> None:
        await fleet.apply(new.agents)  # first what may fail, and changes nothing then
        use_services(new)
        if principals is None:
            who.use(new.server)

    async def left() -> list[JobsLeft]:
        """Jobs of services that are in no settings any more; the log says so, too."""
        found = [
            JobsLeft(service=name, queued=load.by_state[JobState.QUEUED], in_work=load.in_work)
            for name, load in (await gone(services, database)).items()
        ]
        for one in found:
            log.warning("service.gone", **one.model_dump())
        return found

    async def reload_all() -> Reloaded:
        done = await reload.run_once()
        return done.model_copy(update={"left": await left()})

    use_services(settings)
    await left()
    reload = Reload(
        settings,
        read or (lambda: settings),
        lambda old, new: check_change(old, new, others=bool(who.tokens.operators)),
        use,
        lambda: [one.tls for one in fleet.clients.values()],
    )

    def copies() -> list[str]:  # which were made before upgrades
        path = database_path(table)
        return sorted(one.name for one in path.parent.glob(f"{path.name}.schema-*"))

    application = web.Application(client_max_size=_FORM_BYTES)
    add_middlewares(application, gate, problems(error_page))
    context = Context(
        form_limits=FormLimits(
            max_bytes=table.max_upload,
            max_files=table.max_files,
            portable=table.names == "portable",
        ),
        public_url=table.origin,
        return_origins=frozenset(filter(None, map(normal_origin, table.allowed_origins or ()))),
        token_needed=lambda: who.known.needed,
        reload=reload_all,
        database=database,
        storage=storage,
        scratch=scratch,
        fleet=registry,
        agents=agents,
        services=services,
        statistics=statistics,
        allowances=allowed,
        watch=wakeups,
        clock=clock,
        accept=accept,
        cancel=cancel,
        schedules=schedules,
        tokens=who.tokens,
        sessions=who.sessions,
        token_holder=who.known.principal_of,
        audit=who.audit,
        webhooks=webhooks,
        delete=delete,
        retry=retry,
        forget_user=ForgetUser(
            resources, database, delete, schedules, who.tokens, who.audit, copies
        ),
        bulk=Bulk(resources, retry, delete),
        upload_limits=upload_limits,
        upload_threads=upload_threads,
        results_waiting=waiting,
        snapshots=Snapshots(scratch, clock),
        troubles=health.troubles,
        files_to_look_at=health.files_to_look_at,
        vitals=health.vitals,
        waiting=gate.long_poll,
        accepts=who.accepts,
        permits=who.permits,
        measures=measures,
        reads=reads,
        url_prefix=table.url_prefix,
        version=metadata.version("ferryman"),
    )
    collectors = [lag.seconds, supervisor.failures, *gate.requests.collectors]
    application[METRICS] = ServerMetrics(context, database, collectors)
    add_routes(application, context)
    key = await csrf_key(database, secrets.token_bytes(32))
    pages.add_routes(application, Site(context, identity, CsrfTokens(key), LoginTries(clock)))
    return Server(reload, application, supervisor, wakeups, gate, context, fleet)
