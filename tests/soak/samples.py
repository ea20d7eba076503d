"""Memory, descriptors, threads and sizes of the programs, every few seconds."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median

from tests.kit.dev_program import born
from tests.soak.system import System

EVERY_S = 5.0
WARM_S = 120.0
"""Of each life, before its memory is judged: models and caches are filled at first use."""


@dataclass(frozen=True)
class Sample:
    """One program at one moment.

    Attributes:
        life: tells lives of the program apart.
        at: seconds since the soak began.
    """

    program: str
    life: str
    at: float
    rss: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Sizes:
    at: float
    database: int
    server: int
    agents: int


@dataclass(frozen=True)
class Life:
    """What became of one program between a start and an end."""

    program: str
    begin: float
    seconds: float
    rss_first: int
    rss_last: int
    rss_slope: float
    """Bytes an hour, after the first minutes; NaN where the life was too short."""
    descriptors: tuple[int, int]
    """Median of the first and of the last fifth."""
    descriptors_most: int
    threads: tuple[int, int]


class Sampling(threading.Thread):
    def __init__(self, system: System, begun: float, to: Path) -> None:
        super().__init__(daemon=True)
        self._system, self._begun, self._to = system, begun, to
        self.stop = threading.Event()
        self.samples: list[Sample] = []
        self.sizes: list[Sizes] = []

    def run(self) -> None:
        with self._to.open("w") as file:
            while not self.stop.wait(EVERY_S):
                for name, program in self._system.programs().items():
                    process = program.process
                    sample = process and self._sample(name, process.pid)
                    if sample:
                        self.samples.append(sample)
                        file.write(json.dumps(vars(sample)) + "\n")
                self.sizes.append(self._sizes())
                file.write(json.dumps(vars(self.sizes[-1])) + "\n")
                file.flush()

    def _sample(self, name: str, pid: int) -> Sample | None:
        birth = born(pid)
        try:
            fields = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            )
            descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            rss, threads = int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"])
        except (OSError, KeyError):
            return None  # it has ended at this moment
        if birth is None:
            return None
        at = time.monotonic() - self._begun
        return Sample(name, f"{pid}.{birth}", at, rss, descriptors, threads)

    def _sizes(self) -> Sizes:
        data = self._system.server.data
        database = sum(_size(path) for path in data.glob("ferryman.sqlite*"))
        folders = (data / kind for kind in ("bundles", "results", "staging"))
        server = sum(_below(folder) for folder in folders)
        agents = sum(_below(agent.data) for agent in self._system.agents.values())
        return Sizes(time.monotonic() - self._begun, database, server, agents)


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _below(folder: Path) -> int:
    try:
        return sum(_size(path) for path in folder.rglob("*"))
    except OSError:
        return 0  # a folder vanished while it was walked


def lives(samples: list[Sample], warm: float = WARM_S) -> list[Life]:
    grouped: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        grouped.setdefault((sample.program, sample.life), []).append(sample)
    return [_life(program, group, warm) for (program, _), group in grouped.items()]


def _life(program: str, group: list[Sample], warm: float) -> Life:
    begin = group[0].at
    settled = [one for one in group if one.at - begin >= warm]
    slope = float("nan")
    if len(settled) > 10:
        slope = linear_regression([one.at for one in settled], [one.rss for one in settled])[0]
    judged = settled or group
    fifth = max(1, len(judged) // 5)
    first, last = judged[:fifth], judged[-fifth:]

    def ends(name: str) -> tuple[int, int]:
        return (
            round(median(getattr(one, name) for one in first)),
            round(median(getattr(one, name) for one in last)),
        )

    rss = ends("rss")
    return Life(
        program,
        begin,
        group[-1].at - begin,
        *rss,
        slope * 3600,
        ends("descriptors"),
        max(one.descriptors for one in group),
        ends("threads"),
    )
