"""What is counted where it happens, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from prometheus_client import Gauge
from prometheus_client.registry import Collector

from server.domain.jobs import Job, Move
from server.domain.statistics import ALL, Tree, add, begin_of, of_move
from shared.clock import SECOND, Micros
from shared.metrics import OTHER, Series, Transfers, counter, seconds

_JOB_S: Final = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 57_600, 172_800)
"""Bounds for what may take days."""
_ENDS: Final = ("Completed", "Failed", "Cancelled")


class JobMeasures:
    """What happened to jobs: since the server was started, and since it was last written for the
    charts. A crash loses the latter.
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[Micros, str], Tree] = {}
        reason = "service", "reason"
        text = "Attempts after which their job was queued again, by the code of why."
        counters = (
            counter("ferryman_jobs_uploaded", "Jobs that were accepted.", "service"),
            counter("ferryman_attempts_started", "Attempts whose run.sh has started.", "service"),
            counter("ferryman_jobs_ended", "Jobs that ended.", "service", "state"),
            counter("ferryman_jobs_failed", "Jobs that failed, by the code of why.", *reason),
            counter("ferryman_attempts_retried", text, *reason),
        )
        text = "From when an attempt could have been sent until it started."
        waiting = seconds("ferryman_waiting_seconds", text, "service", bounds=_JOB_S)
        text = "From the start of an attempt until its end."
        run = seconds("ferryman_run_seconds", text, "service", bounds=_JOB_S)
        self.collectors: Final = (*counters, waiting, run)
        self._uploaded, self._started, self._ended, self._failed, self._retried = map(
            Series, counters
        )
        self._waiting, self._run = Series(waiting), Series(run)

    def begin(self, services: Iterable[str]) -> None:
        """Make the series of these services: one that begins with 1 has no increase."""
        for service in services:
            for series in (self._uploaded, self._started, self._waiting, self._run):
                series(service)
            for state in _ENDS:
                self._ended(service, state)

    def uploaded(self, at: Micros, service: str, jobs: int = 1, size: int = 0) -> None:
        """There are new jobs. ``size``: of the bundle that was uploaded for them."""
        self._uploaded(service).inc(jobs)
        self._add_both(at, service, {"uploaded": jobs, "uploaded_bytes": size})

    def moved(self, move: Move, job: Job) -> None:
        """A move was made."""
        service, counts = job.service, of_move(move, job)
        if not counts:
            return
        if "started" in counts:
            self._started(service).inc()
            self._waiting(service).observe(counts["waited_us"] / SECOND)
        if "runs" in counts:
            self._run(service).observe(counts["ran_us"] / SECOND)
        if job.ended:
            self._ended(service, job.state).inc()
        for name, series in (("failed", self._failed), ("retried", self._retried)):
            for reason in counts.get(name, ()):
                series(service, reason).inc()
        self._add_both(move.at, service, counts)

    def _add_both(self, at: Micros, service: str, counts: Tree) -> None:
        for name in (ALL, service):
            self.add(begin_of(at), name, counts)

    def add(self, begin: Micros, service: str, counts: Tree) -> None:
        """Add to what is to be written for the charts."""
        add(self._counted.setdefault((begin, service), {}), counts)

    def take(self) -> dict[tuple[Micros, str], Tree]:
        """What was counted since the last call, by the begin of its time and by service."""
        taken, self._counted = self._counted, {}
        return taken


class Measures:
    """Counts since the server was started."""

    def __init__(self) -> None:
        self.jobs = JobMeasures()
        self.transfers = Transfers()
        self.dispatches = counter(
            "ferryman_dispatches",
            "Attempts that were given to an agent, or were to be, by how that went.",
            "agent",
            "outcome",
        )
        self.webhook_tries = counter(
            "ferryman_webhook_tries", "Tries to deliver a webhook.", "outcome"
        )
        text = "Streams of server-sent events that are open."
        self._listeners = Gauge("ferryman_event_listeners", text, ("route",), registry=None)

    def listening(self, route: object) -> AbstractContextManager[None]:
        """While somebody follows the events of a route."""
        return self._listeners.labels(str(getattr(route, "canonical", OTHER))).track_inprogress()

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        sent = self.transfers
        own = (sent.count, sent.size, self.dispatches, self.webhook_tries, self._listeners)
        return (*own, *self.jobs.collectors)
