"""What the host shows of the soak: processes of jobs, the only witness that no agent can fool; what
the programs use of memory and descriptors; and the report of it all.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import NamedTuple

from tests.kit.dev_program import born
from tests.kit.programs import Program
from tests.soak.model import Model, pause

VARIABLE = "SOAK_RUN"
EVERY_S = 5.0
WARM_S = 120.0
"""Of each life, before its memory is judged: models and caches are filled at first use."""
LONG_S = 240.0
"""Lives that are shorter say nothing about a leak."""
MIB = 1 << 20


@dataclass(frozen=True)
class Process:
    pid: int
    birth: str
    job_id: int
    attempt: int

    @property
    def alive(self) -> bool:
        return born(self.pid) == self.birth


def of_jobs(mark: str) -> list[Process]:
    """Processes whose environment says that a job of this soak is theirs."""
    found = []
    needle = f"{VARIABLE}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            lines = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if needle not in lines:
            continue
        values = dict(line.partition(b"=")[::2] for line in lines)
        pid = int(path.parent.name)
        birth = born(pid)
        if birth is not None and b"FERRYMAN_JOB_ID" in values:
            job_id, attempt = int(values[b"FERRYMAN_JOB_ID"]), int(values[b"FERRYMAN_ATTEMPT"])
            found.append(Process(pid, birth, job_id, attempt))
    return found


class Watching(threading.Thread):
    """Looks all the time whether two attempts of one job run at once."""

    def __init__(self, model: Model, mark: str) -> None:
        super().__init__(daemon=True)
        self._model, self._mark = model, mark
        self.stop = threading.Event()
        self.looks = 0

    def run(self) -> None:
        while not self.stop.wait(0.7):
            self.looks += 1
            jobs: dict[int, dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
            for process in of_jobs(self._mark):
                jobs[process.job_id][process.attempt].append(process)
            for job_id, attempts in jobs.items():
                if len(attempts) > 1:
                    self._twice(job_id, attempts)

    def _twice(self, job_id: int, attempts: dict[int, list[Process]]) -> None:
        pause(0.02)
        living = {
            number: [one for one in processes if one.alive]
            for number, processes in attempts.items()
        }
        running = sorted(number for number, processes in living.items() if processes)
        if len(running) < 2:
            return
        self._model.report(f"attempts {running} of job {job_id} ran at once: {living}")


class Sample(NamedTuple):
    at: float
    """Seconds since the soak began."""
    rss: int
    descriptors: int


class Sampling(threading.Thread):
    def __init__(self, programs: Mapping[str, Program], begun: float) -> None:
        super().__init__(daemon=True)
        self._programs, self._begun = programs, begun
        self.stop = threading.Event()
        self.lives: dict[tuple[str, str], list[Sample]] = defaultdict(list)

    def run(self) -> None:
        while not self.stop.wait(EVERY_S):
            for name, program in self._programs.items():
                with suppress(OSError, KeyError):  # it has ended at this moment
                    if program.process:
                        self._look(name, program.process.pid)

    def _look(self, name: str, pid: int) -> None:
        birth, at = born(pid), time.monotonic() - self._begun
        text = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines())
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        rss = int(fields["VmRSS"].split()[0]) * 1024
        self.lives[name, f"{pid}.{birth}"].append(Sample(at, rss, descriptors))


Lives = Mapping[tuple[str, str], Sequence[Sample]]


def markdown(seed: int, seconds: float, model: Model, lives: Lives, looks: int) -> str:
    counts = model.counts
    uploads = sum(n for name, n in counts.items() if name.startswith("uploaded: "))
    lines = [
        f"{uploads} uploads in {seconds / 60:.0f} minutes, seed {seed}; wrong: {len(model.wrong)}.",
        "",
        "| what | times |",
        "|---|---|",
        *(f"| {name} | {counts[name]} |" for name in sorted(counts)),
        f"| looks at all processes for two attempts of one job | {looks} |",
        "",
        *life_table(lives),
        "",
        *(f"- WRONG: {one}" for one in model.wrong),
    ]
    return "\n".join(lines) + "\n"


def life_table(lives: Lives) -> list[str]:
    long = {key: life for key, life in lives.items() if life[-1].at - life[0].at >= LONG_S}
    return [
        "| program, a life | length | memory, warm → at the end | growth | descriptors (most) |",
        "|---|---|---|---|---|",
        *(_line(name, life) for (name, _), life in long.items()),
        f"| {len(lives) - len(long)} shorter lives | | | | |",
    ]


def _line(name: str, life: Sequence[Sample]) -> str:
    begin = life[0].at
    warm = [one for one in life if one.at - begin >= WARM_S]
    slope = linear_regression([one.at for one in warm], [one.rss for one in warm])[0] * 3600
    first, last, most = warm[0], warm[-1], max(one.descriptors for one in life)
    return (
        f"| {name}, from minute {begin / 60:.0f} | {(last.at - begin) / 60:.0f} min "
        f"| {first.rss / MIB:.1f} → {last.rss / MIB:.1f} MiB | {slope / MIB:+.1f} MiB/h "
        f"| {first.descriptors} → {last.descriptors} ({most}) |"
    )
