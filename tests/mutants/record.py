"""A program: runs tests with modules that note where each one comes by; the engine starts it.

    python -m tests.mutants.record FOLDER JOBS SECONDS PYTEST-ARGUMENT...

Each file of tests runs in a process of its own. ``FOLDER/tests`` has a line ``SECONDS NODEID`` for
each test, in the order of their numbers; 0 is the import; SECONDS is -1 where it did not pass.
"""

import builtins
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.forks import Job, Tell, Work, end_with_this_process, side_by_side
from tests.mutants.inside import collect, run_tests


def _file_of(
    session: pytest.Session, number: int, items: list[tuple[int, pytest.Item]], folder: Path
) -> Work[dict[int, float]]:
    notes: Any = builtins.mutants_notes  # type: ignore[attr-defined]
    numbers = {item: index for index, item in items}
    seconds: dict[int, float] = {}

    def begin(item: pytest.Item) -> None:
        notes.begin(numbers[item])

    def work(tell: Tell) -> None:
        own = folder / f"{number}.now"
        own.write_bytes(bytes(4))
        os.environ["MUTANTS_NOW"] = str(own)
        notes.share(own)
        log = folder / f"{number}.log"
        timed = _Timed(tell)
        run_tests(session, [item for _, item in items], timed, log, to_the_end=True, begin=begin)

    job = yield Job(work, limit=lambda line: 400.0, budget=3_000.0)
    by_name = {item.nodeid: index for index, item in items}
    for line in job.lines:
        word, _, rest = line.partition(" ")
        if word == "passed":
            took, _, name = rest.partition(" ")
            seconds[by_name[name]] = float(took)
    return seconds


class _Timed:
    """Puts the seconds since its start before a test's name."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._began = tell, 0.0

    def __call__(self, line: str) -> None:
        word, _, name = line.partition(" ")
        if word == "start":
            self._began = time.monotonic()
        self._tell(f"{word} {time.monotonic() - self._began:.3f} {name}")


def main() -> None:
    folder, jobs, *arguments = sys.argv[1:]
    end_with_this_process()

    def work(session: pytest.Session) -> None:
        numbered = list(enumerate(session.items, 1))
        files = [list(some) for _, some in groupby(numbered, lambda one: one[1].path)]
        works: Iterator[Work[dict[int, float]]] = (
            _file_of(session, number, some, Path(folder))
            for number, some in enumerate(sorted(files, key=len, reverse=True))
        )
        seconds: dict[int, float] = {}
        for found in side_by_side(works, int(jobs)):
            seconds |= found
        with (Path(folder) / "tests").open("w") as file:
            for number, item in numbered:
                file.write(f"{seconds.get(number, -1)} {item.nodeid}\n")

    raise SystemExit(0 if collect(arguments, work) else 1)


if __name__ == "__main__":
    main()
