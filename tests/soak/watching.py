"""What the host shows of the soak: processes of jobs, the only witness that no agent can fool; what
the programs use of memory and descriptors; and the report of it all.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.jobs import memory_mib
from tests.kit.dev_program import born
from tests.kit.programs import Program
from tests.soak.model import Model, pause

VARIABLE = "SOAK_RUN"


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


def usage(programs: Mapping[str, Program]) -> dict[str, tuple[int, float, int]]:
    """Pid, MiB in memory and descriptors of those that run."""
    return {
        name: (
            program.pid,
            memory_mib(program),
            len(list(Path(f"/proc/{program.pid}/fd").iterdir())),
        )
        for name, program in programs.items()
        if program.runs
    }


def markdown(model: Model, looks: int) -> str:
    counts = model.counts
    uploads = sum(n for name, n in counts.items() if name.startswith("uploaded: "))
    lines = [
        f"{uploads} uploads; wrong: {len(model.wrong)}.",
        "",
        "| what | times |",
        "|---|---|",
        *(f"| {name} | {counts[name]} |" for name in sorted(counts)),
        f"| looks at all processes for two attempts of one job | {looks} |",
        "",
        *(f"- WRONG: {one}" for one in model.wrong),
    ]
    return "\n".join(lines) + "\n"
