"""Runs tests with each change, in processes forked from one that has collected them all.

Which test comes by where is noted before, where that of last time does not notice a change again:
each file of tests runs once, without a change, in modules that note where they are.
"""

import builtins
import functools
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from tests.mutants import swap
from tests.mutants.forks import Job, do, side_by_side
from tests.mutants.forms import Change
from tests.mutants.hook.sitecustomize import CODE, NOTES, NOW
from tests.mutants.inside import run_tests
from tests.mutants.noticed import Noticed
from tests.mutants.places import ROOT, Place, made_of, with_notes

BUDGET_S: Final = 180.0
"""Of the tests of one mutant."""
FILES_AT_ONCE: Final = 6
"""That a new interpreter collects before it runs the first test."""


@dataclass
class Map:
    """Which test comes by which place."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of each test that passes without a change."""
    unproved: list[str] = field(default_factory=list)
    """Those that do not, and those that are skipped."""
    reached: dict[Place, set[str]] = field(default_factory=dict)
    """The tests by place, "" for the import."""

    @functools.cached_property
    def _places(self) -> Counter[str]:
        return Counter(name for names in self.reached.values() for name in names)

    def ordered(self, change: Change) -> list[str]:
        """The tests that may notice: those that come by nearest to it, the quick ones and those
        that come by little else first, and those that import the module; then the rest of their
        files, which see what those before them have made.
        """
        steps: dict[str, int] = {}
        for place, count in sorted(change.places.items(), key=lambda one: one[1]):
            for name in self.reached[place] & self.seconds.keys():
                steps.setdefault(name, count)
        made = set().union(*made_of(change.names)) if change.names else set[str]()
        for name in self.seconds if made else ():
            text = _text(_file(name))
            if change.module in text and any(one in text for one in made):
                steps.setdefault(name, 0)  # it may read a constant itself
        files = {_file(name) for name in steps}
        about = _words(f"{change.what} {change.file}")

        def cost(name: str) -> tuple[int, float, str]:
            alike = 1 + len(about & _words(name)) + 2 * (change.module in _text(_file(name)))
            long = (self.seconds[name] + 0.02) * self._places[name] / alike**3
            return steps.get(name, 100), long, name

        return sorted((name for name in self.seconds if _file(name) in files), key=cost)


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text() if (ROOT / file).is_file() else ""


@functools.cache
def _words(text: str) -> frozenset[str]:
    found = re.findall(r"[a-z]{4,}", text.lower().replace("test_", " "))
    return frozenset(word.rstrip("s") for word in found) - {"test", "server", "client", "agent"}


def _file(test: str) -> str:
    return test.partition("::")[0]


def write_notes(changes: Sequence[Change], folder: Path) -> list[Place]:
    """What is imported from now on notes in ``folder`` which of these places it reaches."""
    places = list(dict.fromkeys(place for change in changes for place in change.places))
    swap.write(with_notes(places), folder / "code")
    (folder / "notes").touch()
    (folder / "notes").chmod(0o666)
    (folder / "now").write_bytes(bytes(4))
    os.environ |= {NOTES: str(folder / "notes"), NOW: str(folder / "now")}
    swap.take_at_import(folder / "code")
    return places


def record(session: pytest.Session, places: Sequence[Place], jobs: int, folder: Path) -> Map:
    """Run all tests; no more notes are written afterwards."""
    notes: Any = builtins.mutants_notes  # type: ignore[attr-defined]
    numbers = {item: number for number, item in enumerate(session.items, 1)}

    def share(own: Path) -> None:
        own.write_bytes(bytes(4))
        os.environ[NOW] = str(own)
        notes.share(own)

    def begin(item: pytest.Item) -> None:
        notes.begin(numbers[item])

    seconds = run_files(session, session.items, jobs, folder, share, begin)
    names = [item.nodeid for item in session.items]
    made = Map(
        {name: seconds[name] for name in names if name in seconds},
        [name for name in names if name not in seconds],
        {place: set() for place in places},
    )
    for line in (folder / "notes").read_text().splitlines():
        test, place = map(int, line.split())
        made.reached[places[place]].add(names[test - 1] if test else "")
    end_notes()
    return made


def end_notes() -> None:
    """This process and those that it starts write no more."""
    for name in (NOTES, NOW, CODE):
        os.environ.pop(name, None)
    builtins.mutants_notes = SimpleNamespace(reached=lambda _: None)  # type: ignore[attr-defined]


def run_files(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    jobs: int,
    folder: Path,
    share: Callable[[Path], None],
    begin: Callable[[pytest.Item], None],
) -> dict[str, float]:
    """Run each file's in a process of its own, unchanged; the seconds of those that pass."""
    files = [list(some) for _, some in groupby(items, lambda item: item.path)]
    files.sort(key=len, reverse=True)

    def run_file(number: int) -> list[str]:
        def work(descriptor: int) -> None:
            share(folder / f"{number}.now")
            run_tests(session, files[number], descriptor, folder / f"{number}.log", begin)

        return do(work, lambda line: 400.0, 3_000.0).lines

    seconds: dict[str, float] = {}
    for _, lines in side_by_side(run_file, len(files), jobs):
        for before, line in pairwise(lines):
            if line.startswith("took "):
                seconds[before.removeprefix("passed ")] = float(line.removeprefix("took "))
    return seconds


class Verdict(NamedTuple):
    word: str
    """"noticed", "SURVIVED", "NOT REACHED"."""
    test: str = ""
    how: str = ""
    next_time: Noticed | None = None

    def line(self, change: Change) -> str:
        more = " ".join(filter(None, (self.test, f"({self.how})" if self.how else "")))
        return f"{self.word:9} {change.label} · {more or change.file}"


class Engine:
    def __init__(
        self, session: pytest.Session, changes: Sequence[Change], known: Map, patience: float
    ) -> None:
        self._session, self._changes, self._map, self._patience = session, changes, known, patience
        self._items = {item.nodeid: item for item in session.items}
        self._functions = swap.Functions()
        self._controls: dict[str, bool] = {}

    def run(
        self, jobs: int, folder: Path, last: Callable[[Change], Noticed] | None = None
    ) -> Iterator[tuple[Change, Verdict]]:
        def attempt(number: int) -> Verdict:
            end_notes()
            own = folder / str(number)
            own.mkdir()
            try:
                change = self._changes[number]
                swap.write({change.module: change.code}, own / "code")
                if last:
                    return self._attempt(change, [last(change).test], last(change).afresh, own)
                at_import = any("" in self._map.reached[place] for place in change.places)
                fresh = at_import or not self._functions.can_take(change)
                return self._attempt(change, self._map.ordered(change), fresh, own)
            finally:
                shutil.rmtree(own, ignore_errors=True)

        for number, verdict in side_by_side(attempt, len(self._changes), jobs):
            yield self._changes[number], verdict

    def _attempt(self, change: Change, names: list[str], fresh: bool, folder: Path) -> Verdict:
        if not names:
            return Verdict("NOT REACHED")
        left, seconds, passed = names, 0.0, 0
        while left and seconds < BUDGET_S:
            most = FILES_AT_ONCE * (1 if left is names else 10)
            files = list(dict.fromkeys(map(_file, left)))[: most if fresh else None]
            some = [name for name in left if _file(name) in files]
            job = self._run(change, some, fresh, folder, BUDGET_S - seconds + 30)
            seconds += job.seconds
            started = [line[6:] for line in job.lines if line.startswith("start ")]
            passed += sum(line.startswith("passed ") for line in job.lines)
            test, how = _outcome(job)
            if how == "hangs" and seconds >= BUDGET_S:
                break  # no hang: its time was over
            before = [*started[:-1], test]
            if test and self._is_proof(change, before, how == "hangs", fresh, folder):
                return Verdict("noticed", test, how, Noticed((started or some)[-1], fresh))
            gone = {test, *started} if test else {*some}
            left = [name for name in left if name not in gone]
        over = f", {len(left)} more had no time" if left else ""
        return Verdict("SURVIVED", how=f"{passed} tests passed{over}")

    def _run(
        self,
        change: Change | None,
        names: Sequence[str],
        fresh: bool,
        folder: Path,
        budget: float = BUDGET_S,
    ) -> Job:
        def limit(line: str) -> float:
            word, _, name = line.partition(" ")
            if word == "start":
                return self._patience + 10 * self._map.seconds.get(name, 0.0)
            if word in ("failed", "passed", "took", "done"):
                return 20.0
            return 60.0 if line else 300.0  # a new interpreter collects first

        def work(descriptor: int) -> None:
            if fresh:
                run_fresh(descriptor)
            if change is not None:
                swap.take_at_import(folder / "code")
                self._functions.take(change)
            items = [self._items[name] for name in names]
            run_tests(self._session, items, descriptor, folder / "log")

        def run_fresh(descriptor: int) -> None:
            (folder / "names").write_text("".join(f"{name}\n" for name in names))
            os.set_inheritable(descriptor, True)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            words = ["tests.mutants.inside", descriptor, folder / "log", folder / "names"]
            environ = os.environ | swap.environment(folder / "code")
            command = [sys.executable, "-P", "-m", *map(str, words)]
            os.execve(sys.executable, command, environ)

        return do(work, limit, budget)

    def _is_proof(
        self, change: Change, names: Sequence[str], hung: bool, fresh: bool, folder: Path
    ) -> bool:
        """Whether the last test failed because of the change: it passes by itself without it, and
        failed or fails by itself with it; or it fails again after those that ran before it, and
        passes after them without it. A hang is seen twice, unless the test takes milliseconds.
        """
        *_, test = names
        if test not in self._items:  # it could not even be imported
            return True
        if test not in self._controls:
            self._controls[test] = self._passes([test], folder)
        if hung and self._map.seconds.get(test, self._patience) < self._patience / 20:
            hung = False
        if not self._controls[test] or (len(names) == 1 and not hung):
            return self._controls[test]
        if _outcome(self._run(change, [test], fresh, folder))[0] == test:
            return True
        again = len(names) > 1 and _outcome(self._run(change, names, fresh, folder))[0] == test
        return again and self._passes(names, folder)

    def _passes(self, names: Sequence[str], folder: Path) -> bool:
        """Whether the last of them passes without a change."""
        return f"passed {names[-1]}" in self._run(None, names, False, folder).lines


def last_time(
    session: pytest.Session,
    known: Mapping[str, Noticed],
    changes: Sequence[Change],
    jobs: int,
    folder: Path,
    patience: float,
) -> Iterator[tuple[Change, Verdict]]:
    """What the tests notice again that noticed last time, each by itself."""
    tests = {known[one.label].test for one in changes if one.label in known}
    items = [item for item in session.items if item.nodeid in tests]
    seconds = run_files(session, items, jobs, folder, lambda _: end_notes(), lambda _: None)
    again = [one for one in changes if one.label in known and known[one.label].test in seconds]
    engine = Engine(session, again, Map(seconds), patience)
    for change, verdict in engine.run(jobs, folder, lambda change: known[change.label]):
        if verdict.word == "noticed":
            yield change, verdict


def _outcome(job: Job) -> tuple[str, str]:
    """The test that noticed, and how where it did not just fail."""
    running = "at the import"
    for line in job.lines:
        word, _, name = line.partition(" ")
        if word == "failed":
            return name, ""
        if word == "start":
            running = name
    if "done" in job.lines:
        return "", ""
    return running, "hangs" if job.killed else "the process ends"
