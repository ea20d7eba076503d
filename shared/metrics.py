"""What both programs measure of themselves, and the text that Prometheus reads.

Each program has a registry of its own, so that tests can start many in one process. A label has few
values, whatever callers send: names of the settings, words of ours, routes; never a user or a job.
"""

from __future__ import annotations

import asyncio
import gzip
import platform
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    exposition,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from shared.clock import Clock

_REFUSED: Final = re.compile(r"q\s*=\s*0(\.0*)?", re.IGNORECASE)


def gzip_accepted(header: str) -> bool:
    """Whether Accept-Encoding names gzip, and not with the weight 0."""
    for one in header.split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        if name.lower() == "gzip":
            return not any(_REFUSED.fullmatch(part) for part in parameters)
    return False


SHORT_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Bounds for what takes milliseconds."""
LONG_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Bounds for what may take a minute."""
OTHER: Final = "other"
"""In place of a label's value that is not known."""
_LAG_EVERY_S: Final = 1.0
_OPENMETRICS: Final = "application/openmetrics-text"
_PLAIN: Final = exposition.CONTENT_TYPE_PLAIN_0_0_4
_FAST: Final = 1
"""Level of gzip: a text of metrics becomes a tenth of its size at any."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # series that say when others began would double their number

Of = TypeVar("Of", Counter, Histogram)
Labels: TypeAlias = tuple[str, ...]
"""Values of labels, in the order of their names."""


def known(value: str, values: Collection[str]) -> str:
    """The value of a label, or ``other`` where it is none of those."""
    return value if value in values else OTHER


class Series(Generic[Of]):
    """The series of a metric by the values of its labels: found without making them again.

    Args:
        metric: whose labels have few values; none of its series is ever removed.
    """

    def __init__(self, metric: Of) -> None:
        self._metric: Of = metric
        self._known: dict[Labels, Of] = {}

    def __call__(self, *values: str) -> Of:
        if values not in self._known:
            self._known[values] = self._metric.labels(*values)
        return self._known[values]


def counter(name: str, meaning: str, *labels: str) -> Counter:
    """A counter that is registered later, by the program that has it."""
    return Counter(name, meaning, labels, registry=None)


def seconds(
    name: str, meaning: str, *labels: str, bounds: tuple[float, ...] = SHORT_S
) -> Histogram:
    """A histogram of times that is registered later."""
    return Histogram(name, meaning, labels, buckets=bounds, registry=None)


def gauge(
    name: str, meaning: str, labels: Iterable[str], values: Mapping[Labels, float]
) -> GaugeMetricFamily:
    """How things are now, by the values of labels."""
    family = GaugeMetricFamily(name, meaning, labels=tuple(labels))
    for one, value in values.items():
        family.add_metric(one, value)
    return family


class Transfers:
    """Forms and files on their way: how many, how large, how they ended."""

    def __init__(self) -> None:
        self.count = counter(
            "ferryman_transfers", "Transfers that ended, by how they did.", "kind", "outcome"
        )
        self.size = counter(
            "ferryman_transfer_bytes", "Bytes of transfers, failed ones included.", "kind"
        )
        self._counted, self._sized = Series(self.count), Series(self.size)

    def done(self, kind: str, outcome: str, size: int, number: int = 1) -> None:
        """One has ended, or several that went together.

        Args:
            outcome: ok, refused or failed.
            size: bytes of all of them.
        """
        self._counted(kind, outcome).inc(number)
        self._sized(kind).inc(size)


class EventLoopLag:
    """How late the event loop wakes who sleeps: for as long, nobody is answered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = seconds(
            "ferryman_event_loop_lag_seconds", "How late the event loop woke a sleeper."
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until cancelled, or at most a second after ``stop`` is set."""
        while not stop.is_set():
            before = self._clock.monotonic()
            await self._clock.sleep(_LAG_EVERY_S)
            late = self._clock.monotonic() - before - _LAG_EVERY_S
            self.seconds.observe(max(0.0, late))


@dataclass(frozen=True, slots=True)
class Exposition:
    """The text of all metrics, in the form that was asked for."""

    body: bytes
    headers: Mapping[str, str]


class _Looked(Collector):
    """Metrics that were made just before."""

    def __init__(self) -> None:
        self.found: Iterable[Metric] = ()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self.found


class ProgramMetrics(ABC):
    """All metrics of a program.

    Args:
        program: server or agent.
        collectors: what counts by itself.
    """

    def __init__(self, program: str, version: str, collectors: Iterable[Collector]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._looked = _Looked()
        labels = ("program", "version", "python")
        one: dict[Labels, float] = {(program, version, platform.python_version()): 1.0}
        self._build = gauge("ferryman_build_info", "Always 1; which program this is.", labels, one)
        for collector in (ProcessCollector(registry=None), self._looked, *collectors):
            self._registry.register(collector)

    @abstractmethod
    async def find(self) -> list[Metric]:
        """How things are now."""

    async def text(self, accept: str, encodings: str) -> Exposition:
        """The metrics that were found just now, and what counts by itself.

        Args:
            accept, encodings: the headers Accept and Accept-Encoding of the request.
        """
        self._looked.found = [self._build, *await self.find()]
        small = gzip_accepted(encodings)
        wants_open = _OPENMETRICS in accept.lower()
        kind = openmetrics.CONTENT_TYPE_LATEST if wants_open else _PLAIN
        body = await asyncio.to_thread(_encoded, self._registry, wants_open, small)
        headers = {"Content-Type": kind, "Vary": "Accept, Accept-Encoding"}
        headers["Cache-Control"] = "no-store"
        return Exposition(body, headers | ({"Content-Encoding": "gzip"} if small else {}))


def _encoded(registry: CollectorRegistry, wants_open: bool, small: bool) -> bytes:
    """In a thread: a large server has thousands of lines."""
    text: bytes = (
        openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        if wants_open
        else exposition.generate_latest(registry)
    )
    return gzip.compress(text, _FAST) if small else text
