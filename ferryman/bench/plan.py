"""What load is put on a server: how often, how much, how large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ferryman.bench.quantities import Spread, say_bytes, say_rate, say_time, sizes, times
from ferryman.clock import seeded
from ferryman.units import say_count

MOST_FILES: Final = 10_000
MOST_USERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs that are alike."""

    size: Spread
    """Bytes of the bundle's files."""
    files: int
    """Besides ``run.sh``."""
    run_time: Spread
    """Seconds that ``run.sh`` sleeps."""
    output_size: Spread
    """Bytes that it writes."""
    service: str
    weight: float = 1.0

    def say(self) -> str:
        files = say_count(self.files, "file")
        words = f"{self.size.say(say_bytes)} in {files}, runs {self.run_time.say(say_time)}"
        if self.output_size.high:
            words += f", writes {self.output_size.say(say_bytes)}"
        return f"{words}, service {self.service}"


@dataclass(frozen=True, slots=True)
class Order:
    """One job of the load."""

    number: int
    user: str | None
    service: str
    size: int
    files: int
    run_time_s: float
    output_size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole load. Either ``rate`` or ``concurrency`` is set."""

    kinds: Sequence[Kind]
    rate: float | None = None
    """Jobs a second: open loop, with Poisson arrivals, whatever the server does."""
    concurrency: int | None = None
    """Jobs at a time: closed loop, the next one is sent when one has ended."""
    jobs: int | None = None
    duration_s: float | None = None
    ramp_s: float = 0.0
    users: Sequence[str | None] = field(default=(None,))
    seed: int = 1
    patience_s: float = 120.0
    """For how long to wait at the end for jobs that have not ended."""

    @property
    def services(self) -> list[str]:
        return sorted({kind.service for kind in self.kinds})

    def order(self, number: int) -> Order:
        """The job of this number; the same whenever and in whatever order it is asked for."""
        rng = seeded(f"{self.seed}:{number}")
        kind = rng.choices(self.kinds, [one.weight for one in self.kinds])[0]
        return Order(
            number,
            self.users[number % len(self.users)],
            kind.service,
            round(kind.size.draw(rng)),
            kind.files,
            round(kind.run_time.draw(rng), 3),
            round(kind.output_size.draw(rng)),
        )

    def arrivals(self) -> Iterator[float]:
        """Seconds from the start at which jobs are due, as a Poisson process of ``rate``, which
        grows from nothing for ``ramp_s``."""
        assert self.rate is not None
        rng = seeded(f"{self.seed}:arrivals")
        at = expected = 0.0
        number = 0
        while self.jobs is None or number < self.jobs:
            expected += rng.expovariate(1.0)
            at = self._time_of(expected)
            if self.duration_s is not None and at >= self.duration_s:
                return
            yield at
            number += 1

    def _time_of(self, expected: float) -> float:
        """When so many jobs are expected to have come: the inverse of the rate's integral."""
        assert self.rate is not None
        on_the_ramp = self.rate * self.ramp_s / 2
        if expected < on_the_ramp:
            return float((2 * expected * self.ramp_s / self.rate) ** 0.5)
        return expected / self.rate + self.ramp_s / 2

    def say(self) -> str:
        """For people, on one line."""
        how = (
            f"{say_rate(self.rate)}, open loop"
            if self.rate is not None
            else f"{self.concurrency} at a time, closed loop"
        )
        how += f", for {say_time(self.duration_s)}" if self.duration_s is not None else ""
        how += f", {say_count(self.jobs, 'job')}" if self.jobs is not None else ""
        how += f", ramp {say_time(self.ramp_s)}" if self.ramp_s else ""
        return f"{how}, {say_count(len(self.users), 'user')}, seed {self.seed}"


_KEYS: Final = ("size", "files", "run-time", "output-size", "service")


def kind_of(text: str, usual: Kind) -> Kind:
    """A kind of ``--mix``: ``3:size=1MiB,run-time=2s``; what it does not say is as in ``usual``.

    Raises:
        ValueError
    """
    weight, colon, rest = text.partition(":")
    try:
        kind = replace(usual, weight=float(weight))
    except ValueError:
        kind = replace(usual, weight=0)
    if not colon or not 0 < kind.weight < 1e9:
        raise ValueError(f"{text!r} is not a kind such as 3:size=1MiB,run-time=2s")
    given: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or key not in _KEYS or key in given:
            raise ValueError(f"{pair!r} in {text!r}: give each of {', '.join(_KEYS)} at most once")
        given[key] = value
    return _with(kind, given)


def _with(kind: Kind, given: Mapping[str, str]) -> Kind:
    if "size" in given:
        kind = replace(kind, size=sizes(given["size"]))
    if "files" in given:
        number = int(given["files"]) if given["files"].isdecimal() else 0
        if not 1 <= number <= MOST_FILES:
            raise ValueError(f"files={given['files']} should be 1 to {MOST_FILES}")
        kind = replace(kind, files=number)
    if "run-time" in given:
        kind = replace(kind, run_time=times(given["run-time"]))
    if "output-size" in given:
        kind = replace(kind, output_size=sizes(given["output-size"]))
    return replace(kind, service=given.get("service", kind.service))
