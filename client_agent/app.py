"""Composition root of the agent: start the parts in order, serve, stop them in order."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from client_agent.api.bulk import Bulk
from client_agent.api.files import Files
from client_agent.api.requests import answer_problems
from client_agent.api.routes import Api, Snapshots
from client_agent.check import limit_tests
from client_agent.check import table as check_table
from client_agent.check.table import Table
from client_agent.intake.admission import Admission, Identity
from client_agent.intake.submit import Defaults, Intake
from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.store import Payloads, open_database
from client_agent.report.health import AgentMetrics, Health
from client_agent.run import retention
from client_agent.run.context import AgentContext, Measures, SlotQueue
from client_agent.run.retention import RetentionSweep, recover
from client_agent.run.runner import EndRequests, Runner, drain
from client_agent.sandbox.base import SOFT, Grants, Sandbox, SandboxSettings, SelfTestReport
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.kernel.uids import UidBlock
from client_agent.sandbox.none import NoSandbox
from client_agent.sandbox.watch import SandboxWatch
from client_agent.settings.agent import AgentSection
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared import probe
from shared.clock import Clock
from shared.files.durable import FolderLock
from shared.http import connections
from shared.http.authentication import proving
from shared.http.listener import Listener
from shared.http.measured import METRICS
from shared.http.middleware import Gate, add_middlewares
from shared.http.protocol import Deadlines
from shared.http.sockets import CannotListen, check_exposure, listen
from shared.http.tls import TlsFiles
from shared.metrics import EventLoopLag
from shared.probe import Heartbeats
from shared.service_manager import ServiceManager
from shared.settings.base import SettingsError
from shared.settings.effective import differences
from shared.settings.limits import LimitsTable
from shared.steady_clock import PersistentClock

log: structlog.stdlib.BoundLogger = structlog.get_logger()
APPLIED: Final = frozenset({"tokens", "metrics_tokens", "services"})
"""Keys of ``[agent]`` that a reload applies; all others wait for a restart."""


class Reload:
    """Reads the settings again at each :meth:`run_once`.

    Args:
        settings: those in use.
        read: raises SettingsError.
        use: applies them.
        tls: the files that it listens with.

    Attributes:
        settings: those in use.
    """

    def __init__(
        self,
        settings: AgentSection,
        read: Callable[[], AgentSection],
        use: Callable[[AgentSection], None],
        tls: TlsFiles | None = None,
    ) -> None:
        self.settings, self._read, self._use, self._tls = settings, read, use, tls
        self._one_at_a_time = asyncio.Lock()

    async def run_once(self) -> bool:
        """Apply what has changed: all that is not to wait for a restart, or nothing. Returns
        whether it was."""
        async with self._one_at_a_time:
            try:
                new = await asyncio.to_thread(self._read)
                self._check(new)
            except (SettingsError, ValueError, CannotListen) as problem:
                log.warning("settings.not_reloaded", why=str(problem))
                return False
            await self._apply(new)
            return True

    def _check(self, new: AgentSection) -> None:
        """Without a token, whoever reaches it could run programs."""
        if self.settings.all_tokens() and not new.all_tokens():
            raise ValueError("agent.tokens: the last token is taken out by a restart only")
        check_exposure(new.host, bool(new.all_tokens()), "agent")

    async def _apply(self, new: AgentSection) -> None:
        old = self.settings
        waiting = {
            key
            for key in AgentSection.model_fields.keys() - APPLIED
            if getattr(new, key) != getattr(old, key)
        }
        self.settings = new.model_copy(update={key: getattr(old, key) for key in waiting})
        self._use(self.settings)
        if self._tls is not None:
            await asyncio.to_thread(self._tls.reload)
        applied = 0
        found = differences(old, new)
        for one in found:
            values = {"key": f"agent.{one.key}", "old": one.old, "new": one.new}
            if one.key.partition(".")[0] in waiting:
                log.warning("setting.not_applied", **values, advice="restart to apply")
            else:
                applied += 1
                log.info("setting.changed", **values)
        log.info("settings.reloaded", applied=applied, waiting=len(found) - applied)


_MAX_EXTRA_WORKERS: Final = 8
"""At most so many attempts are prepared or packed besides those that run."""
_MIN_SPARE_IMAGES: Final = 4
_PLAIN_TIMEOUT_S: Final = 7 * 86_400.0
"""Of bundles that come without limits: one that hangs gives its slot back."""
_AGENT_FDS: Final = 48
_FDS_PER_WORKER: Final = 32
"""Descriptors that connections must leave free: for pipes, pidfds, folders and files of jobs."""


def worker_count(settings: AgentSection) -> int:
    """Attempts that are handled at once: as many run as there are slots, a few are prepared."""
    return settings.slots + min(settings.slots, _MAX_EXTRA_WORKERS)


def _prepared_starts(settings: AgentSection) -> int:
    return settings.slots if settings.sandbox != "none" else 0


def uid_count(settings: AgentSection, workers: int) -> int:
    """Uids of a root agent: one for the self-test, one for each worker, and those of prepared
    starts, of which some wait and each worker may have one."""
    waiting = _prepared_starts(settings)
    return 1 + workers + (waiting + workers if waiting else 0)


def free_floor(settings: AgentSection) -> int:
    """With fewer free bytes on the disk, jobs that run are ended."""
    return settings.min_free // 2


def sandbox_settings(
    settings: AgentSection, workers: int, first_uid: int | None
) -> SandboxSettings:
    """What the sandbox is given.

    Args:
        first_uid: of the jobs of a root agent; None: they have the agent's.
    """
    first = first_uid or 0
    last = first - 1 + uid_count(settings, workers)
    return replace(
        settings.sandboxing.settings(free_floor(settings), first_uid),
        own_uids=range(first - 1, last) if first else range(0),
        prepared_starts=_prepared_starts(settings),
        prepared_uids=range(first + workers, last),
        spare_images=max(_MIN_SPARE_IMAGES, settings.slots),
    )


def defaults(settings: AgentSection) -> Defaults:
    """For bundles of a job-orchestrator server, which sends no limits: a week, each slot's share
    of the host, and otherwise what a service has.
    """
    service, usual = settings.default_service, LimitsTable()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = {
        "cpus": max(usual.cpus, len(os.sched_getaffinity(0)) / settings.slots),
        "memory": max(usual.memory, memory // settings.slots),
        "network": settings.sandboxing.grants().for_service(service).network,
    }
    return Defaults(service, _PLAIN_TIMEOUT_S, usual.limits().model_copy(update=share))


def connection_limits(open_files: int, settings: AgentSection) -> connections.ConnectionLimits:
    """As many as the open files that are left allow."""
    return connections.connection_limits(
        open_files, own=_AGENT_FDS + _FDS_PER_WORKER * worker_count(settings)
    )


def warn(backend: str, report: SelfTestReport, grants: Grants) -> None:
    """Log what jobs can do that an operator should know about."""
    if backend == "none":
        log.warning("sandbox.none", advice="bundles run with all rights of this user")
    soft = [name for name, how in report.enforcement.items() if how == SOFT]
    if soft:
        log.warning("sandbox.soft_limits", limits=soft, advice=list(report.advice))
    if grants.networked:
        advice = "jobs reach what this host reaches, this agent's own port included"
        log.warning("sandbox.network", services=grants.networked, advice=advice)


_STOP_S: Final = 30.0
"""For what is left to do after ``shutdown_grace``."""
_RESPONSE_SHARE: Final = 0.3
"""Share of ``shutdown_grace`` in which open connections may finish their responses."""


def version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version("ferryman")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@contextlib.contextmanager
def open_sandbox(settings: AgentSection, clock: Clock, uids: int) -> Iterator[Sandbox]:
    """The operator's backend, with its uids reserved. Raises SandboxBroken if too few are free.

    Args:
        uids: number of uids that a root agent needs for its jobs.
    """
    sandboxing, reserved, first = settings.sandboxing, None, None
    if os.geteuid() == 0:  # the first uid is for the self-test, which may run at the same time
        reserved = UidBlock(sandboxing.uid_base, sandboxing.uid_count, uid_count(settings, uids))
        first = reserved.first + 1
    backend = NoSandbox if settings.sandbox == "none" else Bubblewrap
    try:
        yield backend(clock, settings.data_dir, sandbox_settings(settings, uids, first))
    finally:
        if reserved is not None:
            reserved.close()


async def serve(
    settings: AgentSection,
    clock: Clock,
    ready: Callable[[int], None],
    read: Callable[[], AgentSection] | None = None,
) -> None:
    """Run the agent until SIGTERM or SIGINT, or until it is drained after SIGUSR1. A second signal
    to stop does not wait for attempts that are to continue; a third one ends it immediately.

    Args:
        ready: called with the port once the agent answers requests.
        read: reads the settings again, at SIGHUP; None: they stay.

    Raises:
        CannotListen, FolderInUse, SandboxBroken, DatabaseUnavailable, NewerSchema, OSError: it
        cannot start.
    """
    asked = EndRequests()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, asked)
    loop.add_signal_handler(signal.SIGUSR1, asked.drain.set)
    hangup = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    manager = ServiceManager()
    manager.starting(clock)
    with open_sandbox(settings, clock, worker_count(settings)) as sandbox:
        async with running(settings, clock, sandbox, asked) as agent:
            reload = Reload(settings, read or (lambda: settings), agent.use, agent.tls)
            reloading = asyncio.create_task(manager.reload_at(hangup, reload.run_once, clock))
            ready(agent.port)
            manager.ready(clock, agent.health.alive, agent.health.sentence)
            await asked.stop.wait()
            reloading.cancel()
            log.info("agent.stopping")
            manager.stopping(clock, asked.patience(settings.shutdown_grace + _STOP_S, clock))
    await manager.close()
    log.info("agent.stopped", in_time=agent.in_time)
    if not agent.in_time:
        sys.stderr.flush()
        os._exit(0)  # a thread still packs a result, and the interpreter would wait for it


@dataclass(slots=True)
class Running:
    """A started agent."""

    port: int
    health: Health
    use: Callable[[AgentSection], None]
    """Takes the tokens and services of other settings."""
    tls: TlsFiles | None = None
    in_time: bool = True
    """Set when it has stopped. False: some attempt's end could not be stored in time."""


@contextlib.asynccontextmanager
async def running(
    settings: AgentSection, machine_clock: Clock, sandbox: Sandbox, asked: EndRequests | None = None
) -> AsyncIterator[Running]:
    """A started agent; stopped when the context ends.

    Args:
        machine_clock: the machine's clock.
        asked: how it is to end; None: without waiting for any attempt.

    Raises: as :func:`serve`.
    """
    check_exposure(settings.host, bool(settings.all_tokens()), "agent")
    async with contextlib.AsyncExitStack() as stack:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        stack.callback(FolderLock(settings.data_dir).close)
        clock = PersistentClock(settings.data_dir, machine_clock)
        stack.push_async_callback(sandbox.close)
        socket = listen(settings.host, settings.port)  # a server that asks now waits for its answer
        stack.callback(socket.close)
        watch = SandboxWatch(sandbox, clock)
        stack.push_async_callback(watch.close)
        await watch.self_test()
        grants = settings.sandboxing.grants()
        warn(settings.sandbox, watch.report, grants)

        folders = Folders(settings.data_dir, lambda: secrets.token_hex(16))
        database = await open_database(settings.database or settings.data_dir / "agent.sqlite")
        stack.push_async_callback(database.close)
        payloads = await Payloads.open(database, clock)
        prepared = await recover(payloads, folders, sandbox)
        bundles = SharedBundles(folders, clock)
        for payload in prepared:
            content = payload.server or "", payload.bundle_digest
            bundles.use(payload.bundle_file, content, payload.bundle_size, payload.id)

        threads = ThreadPoolExecutor(worker_count(settings), "ferryman-job")
        stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        identity = Identity(
            await payloads.agent_id(secrets.token_hex(16)),
            settings.name,
            version(),
            settings.slots,
            settings.labels,
            settings.services,
            settings.min_free,
        )
        outputs = LiveOutputs(clock, payloads.wakeups)
        stack.callback(outputs.close)
        context = AgentContext(
            payloads,
            folders,
            bundles,
            sandbox,
            clock,
            threads,
            watch,
            identity,
            settings.grace,
            SlotQueue(settings.slots),
            grants,
            outputs,
            Measures(clock),
        )
        runner = Runner(context, worker_count(settings))
        admission = Admission(identity, folders, watch, grants, clock)
        heartbeats = Heartbeats(clock)
        heartbeats.check("workers", lambda: runner.alive)
        health = Health(admission, payloads, folders, watch, grants, clock, heartbeats, runner)
        snapshots = Snapshots(runner, folders, admission)
        stack.callback(snapshots.close)
        intake = Intake(
            payloads,
            folders,
            bundles,
            admission,
            runner.enqueue,
            defaults=defaults(settings),
            clock=clock,
        )
        allowed = connection_limits(connections.raise_open_file_limit(), settings)
        app = web.Application()
        gate = Gate(settings, allowed, id_field="payload_id")
        add_middlewares(app, gate, answer_problems)
        lag = EventLoopLag(clock)
        app[METRICS] = AgentMetrics(context, health, database, gate, lag)
        if (identity_secret := settings.identity()) is not None:
            app.on_response_prepare.append(proving(identity_secret))
        api = Api(payloads, outputs, runner, intake, health, folders, snapshots, clock)
        app.add_routes(api.routes())
        app.add_routes(Bulk(payloads, intake, folders).routes())
        app.add_routes(Files(payloads, runner, folders).routes())
        response_s = settings.shutdown_grace * _RESPONSE_SHARE
        tls = settings.tls()
        listener = Listener(app, socket, allowed, Deadlines(), response_s, tls)
        stack.push_async_callback(listener.close)

        stop = asyncio.Event()
        sweep = RetentionSweep(payloads, folders, bundles, clock, settings.retention)
        tick = heartbeats.add("retention", retention.INTERVAL_S)
        background = asyncio.gather(
            sweep.run(stop, tick), clock.keep_saved(stop), probe.watch(health.unready, stop, clock)
        )
        stack.callback(asyncio.create_task(lag.run(stop)).cancel)
        runner.start(prepared)

        def use(new: AgentSection) -> None:
            identity.services = new.services
            gate.use_tokens(new)

        agent = Running(socket.getsockname()[1], health, use, tls)
        await listener.start()
        draining = None
        if asked is not None:
            begin = partial(setattr, admission, "draining", True)
            draining = asyncio.create_task(drain(asked, begin, runner, payloads, clock))
        try:
            yield agent
        finally:
            if draining is not None:
                draining.cancel()
            admission.shutting_down = True  # submits are refused; events are still sent
            stop_s = settings.shutdown_grace * (1 - _RESPONSE_SHARE)
            agent.in_time = await runner.stop(stop_s, asked)
            payloads.wakeups.close()  # the event streams send the last ends, then end
            stop.set()
            await background


async def check(settings: AgentSection, clock: Clock) -> Table:
    """Check in a folder of its own. The result is kept for ``/health`` where this user may write
    the agent's folder. Raises OSError.
    """
    home = settings.data_dir if os.access(settings.data_dir, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="check-", dir=home) as folder:
        (logs := Path(folder) / "logs").mkdir()
        grants = settings.sandboxing.grants()
        own_folder = settings.model_copy(update={"data_dir": Path(folder)})
        with open_sandbox(own_folder, clock, 1) as sandbox:
            try:
                table = await limit_tests.check(sandbox, logs, grants.granted)
            finally:
                await sandbox.close()
    if home is not None:
        check_table.store(home, table, clock.now(), version())
    return table


def _on_signal(number: int, asked: EndRequests) -> None:
    if asked.on_stop_signal():
        os._exit(128 + number)  # all jobs die with this process
