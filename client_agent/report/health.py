"""What ``GET /health`` says about this agent."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client.metrics_core import Metric

from client_agent.check import table
from client_agent.intake.admission import DRAINING, Admission
from client_agent.payloads.errors import Refused
from client_agent.payloads.store import Payloads
from client_agent.run.context import AgentContext
from client_agent.run.runner import Runner
from client_agent.sandbox.base import Grants
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage.folders import Folders
from shared.clock import Clock
from shared.http.middleware import Gate
from shared.metrics import EventLoopLag, Labels, ProgramMetrics, gauge
from shared.probe import Heartbeats, Probe, is_silent
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import AgentHealth, AgentStatus, PayloadState

_STAT: Final = Path("/proc/stat")
_IDLE: Final = slice(3, 5)  # idle, iowait
_COUNTED: Final = 8  # user includes the guest times, which follow


class CpuLoad:
    """CPU use between two calls.

    Args:
        stat: a file like ``/proc/stat``.
    """

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._last: tuple[int, int] | None = None

    def percent(self) -> float:
        """Of all processors since the last call, 0 to 100; 0.0 at the first call, or if unknown."""
        return self.percent_since() or 0.0

    def percent_since(self) -> float | None:
        """As :meth:`percent`; None at the first call, or if unknown."""
        try:
            words = self._stat.read_text().split("\n", 1)[0].split()[1 : 1 + _COUNTED]
            ticks = [int(word) for word in words]
        except (OSError, ValueError, IndexError):
            return None
        now = sum(ticks), sum(ticks[_IDLE])
        last, self._last = self._last, now
        if last is None or now[0] <= last[0]:
            return None
        idle = (now[1] - last[1]) / (now[0] - last[0])
        return round(100.0 * min(1.0, max(0.0, 1.0 - idle)), 2)


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_REFUSING: Final = "no new bundles are taken"
READINESS: Final = (
    *("database", "data_folder", "disk_full", "sandbox", "loop_stuck", "draining", "stopping"),
)
"""What :meth:`Health.unready` looks at."""


class Health:
    """The agent's state of health."""

    def __init__(
        self,
        admission: Admission,
        payloads: Payloads,
        folders: Folders,
        sandbox: SandboxWatch,
        grants: Grants,
        clock: Clock,
        heartbeats: Heartbeats,
        runner: Runner,
    ) -> None:
        self._runner, self._stuck = runner, list[str]()
        self._heartbeats = heartbeats
        self._admission, self._payloads, self._folders = admission, payloads, folders
        self._sandbox, self._grants = sandbox, grants
        self._disk = Probe("the data folder", self._check_disk, clock)
        self._cpu_load = CpuLoad()  # of its own: it says what was between two calls

    async def alive(self) -> bool:
        """Whether a restart would not help: every loop goes round, or waits for a disk that does
        not answer, for which a new process would wait, too.
        """
        stuck = self._heartbeats.stuck()
        if stuck and stuck != self._stuck:
            log.error("loop.stuck", loops=stuck)
        self._stuck = stuck
        return not stuck or any(map(is_silent, await self._disk.problems()))

    async def sentence(self) -> str:
        """For ``systemctl status``."""
        wrong = "; ".join((await self.unready()).values()) or "all is well"
        slots, runner = self._admission.identity.slots, self._runner
        return f"{runner.running} of {slots} slots in use, {runner.waiting} wait; {wrong}"

    async def unready(self) -> dict[str, str]:
        """Why no bundles are taken now: code -> sentence; empty: they are. Unlike :meth:`report`, a
        full disk is a reason.
        """
        reasons = {}
        database = await self._payloads.problem()
        if database is not None:
            reasons["database"] = database
        for problem in await self._disk.problems():
            full = problem.startswith(_REFUSING)
            reasons["disk_full" if full else "data_folder"] = problem
        broken = await self._sandbox.problem()
        if broken is not None:
            reasons["sandbox"] = broken
        if self._admission.shutting_down:
            reasons["stopping"] = "the agent is shutting down"
        elif self._admission.draining:
            reasons["draining"] = DRAINING
        stuck = ", ".join(self._heartbeats.stuck())
        if stuck:
            reasons["loop_stuck"] = f"these loops are stuck: {stuck}"
        return reasons

    async def report(self, running: int) -> tuple[AgentHealth, bool]:
        """The body of ``GET /health``, and whether the agent is healthy."""
        database = await self._payloads.problem() or "ok"
        problems = [] if database == "ok" else [f"database: {database}"]
        # A full disk is not unhealthy: servers avoid an unhealthy agent, and nobody would fetch the
        # results that fill the disk.
        disk = await self._disk.problems()
        notes = [problem for problem in disk if problem.startswith(_REFUSING)]
        problems += [problem for problem in disk if problem not in notes]
        broken = await self._sandbox.problem()
        if broken is not None:
            (notes if notes else problems).append(broken)  # a full disk prevents its test
        if self._admission.shutting_down:
            problems.append("the agent is shutting down")
        elif self._admission.draining:
            problems.append(DRAINING)
        identity = self._admission.identity
        health = AgentHealth(
            status="error" if problems else "ok",
            draining=self._admission.draining,
            database=database,
            agent=identity.name,
            agent_id=identity.agent_id,
            version=identity.version,
            slots=identity.slots,
            labels=dict(identity.labels),
            running=running,
            load=self._cpu_load.percent(),
            services=None if identity.services is None else list(identity.services),
            sandbox=self._sandbox_doc(broken),
            message="; ".join(problems + notes),
            ready=not problems and not notes,
            packs=self._sandbox.report.backend == "bubblewrap",
        )
        return health, not problems

    def status(self, running: int, load: float | None) -> AgentStatus:
        """What changes often, without any look at disk or database."""
        admission = self._admission
        return AgentStatus(
            slots=admission.identity.slots, running=running, load=load, draining=admission.draining
        )

    def _check_disk(self) -> list[str]:
        """Runs in a thread."""
        try:
            self._folders.check_writable()
            self._admission.check_space(0)
        except Refused as problem:
            return [f"{_REFUSING}: {problem.message}"]
        except OSError as problem:
            return [f"the data folder cannot be written: {problem.strerror or problem}"]
        return []

    def _sandbox_doc(self, broken: str | None) -> dict[str, Any]:
        report = self._sandbox.report
        warnings = ["bundles run without isolation"] if report.backend == "none" else []
        if self._grants.networked:
            services = ", ".join(self._grants.networked).replace("*", "any service")
            warnings.append(f"jobs of {services} may use this host's network")
        return {
            "backend": report.backend,
            "version": report.version,
            "enforcement": dict(report.enforcement),
            "checks": dict(report.checks),
            "advice": list(report.advice),
            "opened": self._grants.doc(),
            "warning": "; ".join(warnings),
            "broken": broken,
            "check": table.stored(self._folders.home),
        }


_FRESH_S: Final = 2.0
"""For so long what was looked at is said again."""


class AgentMetrics(ProgramMetrics):
    """The metrics of an agent."""

    def __init__(
        self,
        context: AgentContext,
        health: Health,
        database: Database,
        gate: Gate,
        lag: EventLoopLag,
    ) -> None:
        sent = gate.requests.transfers
        own = (*context.measures.collectors, *context.payloads.collectors)
        http = (*gate.requests.collectors, sent.count, sent.size)
        counting = [lag.seconds, *http, database.commit_s, *own]
        super().__init__("agent", context.identity.version, counting)
        self._context, self._health = context, health
        self._found: list[Metric] = []
        self._found_until, self._looking = -math.inf, asyncio.Lock()

    async def find(self) -> list[Metric]:
        clock = self._context.clock
        async with self._looking:  # who asks at the same time gets the same
            if clock.monotonic() >= self._found_until:
                self._found = [*await self._of_payloads(), *await self._of_agent()]
                self._found_until = clock.monotonic() + _FRESH_S
        return self._found

    async def _of_payloads(self) -> list[Metric]:
        states: dict[Labels, float] = {(state.value,): 0 for state in PayloadState}
        try:
            counts = await self._context.payloads.counts()
        except DatabaseUnavailable:
            return []
        states |= {(state.value,): count for state, count in counts.items()}
        text = "Payloads that no server has acknowledged."
        return [gauge("ferryman_payloads", text, ("state",), states)]

    async def _of_agent(self) -> list[Metric]:
        reasons = await self._health.unready()
        unready: dict[Labels, float] = {(name,): name in reasons for name in READINESS}
        free, size, waiting = await asyncio.to_thread(_disk, self._context.folders)
        values = (
            ("ferryman_slots", "Jobs that may run at once.", self._context.identity.slots),
            ("ferryman_slots_in_use", "Slots in use.", self._context.slots.in_use),
            (
                "ferryman_quarantined_attempts",
                "Folders of attempts whose processes did not die.",
                waiting,
            ),
            (
                "ferryman_event_listeners",
                "Servers that follow the events of payloads.",
                self._context.payloads.wakeups.listeners,
            ),
            ("ferryman_disk_free_bytes", "Free bytes of the disk of the data folder.", free),
            ("ferryman_disk_size_bytes", "Bytes of that disk.", size),
            (
                "ferryman_disk_min_free_bytes",
                "Free bytes that bundles must leave: min_free.",
                self._context.identity.min_free,
            ),
        )
        text = "1: for this reason no bundles are taken now."
        found: list[Metric] = [gauge("ferryman_unready", text, ("reason",), unready)]
        return found + [gauge(name, text, (), {(): value}) for name, text, value in values]


def _disk(folders: Folders) -> tuple[int, int, int]:
    """Free bytes, all bytes, and how many folders are quarantined. Blocking."""
    disk = os.statvfs(folders.home)
    quarantine = folders.home / "quarantine"
    waiting = len(list(quarantine.iterdir())) if quarantine.is_dir() else 0
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, waiting
