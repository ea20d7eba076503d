"""Runs every mutant in a copy of the repository: ``make mutants``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from client_agent.storage.remove_tree import remove_tree
from tests.mutants.mutant import Mutant
from tests.mutants.runner import RUNNING, Copy, Run, problem, syntax_problem
from tests.mutants.table import THREAT_MODEL, all_mutants

T = TypeVar("T")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the copies, open to the uids of tests; trees in it may be as deep as they like."""
    folder = Path(tempfile.mkdtemp(prefix="ferryman-mutants-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        remove_tree(folder)


def run_all(
    copies: SimpleQueue[Copy],
    threads: ThreadPoolExecutor,
    things: Iterable[T],
    work: Callable[[Copy, T], Run],
) -> Iterator[tuple[T, Run]]:
    """Do the work for all things, each in a free copy; yields them as they are done."""

    def in_copy(thing: T) -> tuple[T, Run]:
        copy = copies.get()
        try:
            return thing, work(copy, thing)
        finally:
            copies.put(copy)

    for future in as_completed([threads.submit(in_copy, thing) for thing in things]):
        yield future.result()


def line(verdict: str, mutant: Mutant, *more: str) -> str:
    return " ".join((f"{verdict:9}{mutant.rule:5} {mutant.file}: {mutant.protection}", *more))


def run(chosen: Sequence[Mutant], jobs: int) -> list[str]:
    """Print a line for each mutant when it is done; returns the lines of those that failed."""
    bad: list[str] = []

    def report(text: str, *, ok: bool = False) -> None:
        print(text, flush=True)
        if not ok:
            bad.append(text)

    files: dict[str, set[str]] = defaultdict(set)
    for mutant in chosen:
        for test in mutant.tests:
            files[test.partition("::")[0]].add(test)
    with scratch() as folder, ThreadPoolExecutor(jobs) as threads:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(folder / str(number)))
        for tests, outcome in run_all(
            copies, threads, files.values(), lambda c, t: c.run(sorted(t))
        ):
            if outcome.error:
                report(f"BROKEN   {sorted(tests)} cannot be run:\n{outcome.error}")
            for test in sorted(tests):
                if not outcome.error and not outcome.passed_by(test):
                    report(f"BROKEN   {test} does not pass without a change")
        for mutant, outcome in run_all(copies, threads, chosen, Copy.mutated):
            left = [test for test in mutant.tests if not outcome.failed_by(test)]
            if outcome.error:
                report(line("BROKEN", mutant, "cannot be run:", "\n", outcome.error))
            elif left:
                report(line("SURVIVED", mutant, "|", *left))
            else:
                report(line("noticed", mutant, *(["(hangs)"] if outcome.hung else [])), ok=True)
    return bad


def table() -> str:
    """Each protection of the threat model, by its rule, with what fails without it."""
    rows = []
    for mutant in THREAT_MODEL:
        names = ", ".join(test.partition("::")[2] for test in mutant.tests)
        rows.append(f"{mutant.rule:5} {mutant.file}: {mutant.protection}\n      {names}")
    return "\n".join(rows)


def _end(number: int, _: object) -> None:
    """Leave no test running."""
    for leader in list(RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    os._exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants with one of these in their line")
    parser.add_argument("--only", metavar="PREFIX", help="only mutants of files that start so")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--table", action="store_true", help="print the protections, run nothing")
    given = parser.parse_args()
    if given.table:
        print(table())
        return
    chosen = [
        mutant
        for mutant in all_mutants()
        if mutant.file.startswith(given.only or "")
        and (not given.words or any(word in line("", mutant) for word in given.words))
    ]
    wrong = [
        line("WRONG", mutant, "|", why)
        for mutant in chosen
        if (why := problem(mutant) or syntax_problem(mutant))
    ]
    if wrong or not chosen:
        raise SystemExit("\n".join(wrong) or "no mutant is like this")
    signal.signal(signal.SIGTERM, _end)
    bad = run(chosen, given.jobs)
    print(
        f"{len(chosen)} mutants, {len(bad)} not noticed or without a test that passes",
        *bad,
        sep="\n",
    )
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
