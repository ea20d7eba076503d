"""Runs tests with each change, in processes forked from one that has collected them all."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.mutants import swap
from tests.mutants.forks import Job, Tell, Work, side_by_side
from tests.mutants.forms import Change
from tests.mutants.hook.sitecustomize import NOTES, NOW
from tests.mutants.inside import collect, run_tests
from tests.mutants.places import ROOT, Place, with_notes

KEPT: Final = ROOT / ".mutants"
"""What is kept from one run for the next; git ignores it."""
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
    reached: dict[str, list[str]] = field(default_factory=dict)
    """The tests by place, "" for the import; empty where none comes by."""

    def ordered(self, change: Change) -> list[str]:
        """The tests that may notice: those that come by nearest to it, the quick ones and those
        that come by little else first, and those that import the module; then the rest of their
        files, which see what those before them have made.
        """
        if not hasattr(self, "_places"):
            self._places = Counter(name for names in self.reached.values() for name in names)
        steps: dict[str, int] = {}
        for where, count in sorted(change.places.items(), key=lambda one: one[1]):
            for name in self.reached.get(_name(where), ()):
                if name in self.seconds:
                    steps.setdefault(name, count)
        for name in self.seconds if change.names else ():
            text = _text(_file(name))
            if change.module in text and any(one in text for one in change.names):
                steps.setdefault(name, 0)  # it may read a constant itself
        files = {_file(name) for name in steps}
        rest = [name for name in self.seconds if _file(name) in files and name not in steps]
        about = _words(f"{change.what} {change.file}")

        def cost(name: str) -> tuple[int, float]:
            imports = change.module in _text(_file(name))
            alike = 1 + len(about & _words(name)) + 2 * imports
            return steps.get(name, 99), (self.seconds[name] + 0.02) * self._places[name] / alike**3

        return sorted(steps, key=cost) + sorted(rest, key=cost)

    def at_import(self, change: Change) -> bool:
        return any("" in self.reached.get(_name(place), ()) for place in change.places)


def _name(place: Place) -> str:
    return ":".join(place)


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text() if (ROOT / file).is_file() else ""


@functools.cache
def _words(text: str) -> frozenset[str]:
    found = re.findall(r"[a-z]{4,}", text.lower().replace("test_", " "))
    return frozenset(word.rstrip("s") for word in found) - {"test", "server", "client", "agent"}


def _file(test: str) -> str:
    return test.partition("::")[0]


def record(changes: Sequence[Change], arguments: Sequence[str], jobs: int, folder: Path) -> Map:
    places = list(dict.fromkeys(place for change in changes for place in change.places))
    statements = {(one.file, one.spot.place): one.spot.statement for one in changes}
    code, notes = folder / "code", folder / "notes"
    swap.write(with_notes(places, statements), code)
    notes.touch()
    notes.chmod(0o666)
    (folder / "now").write_bytes(bytes(4))
    environ = {**os.environ, **swap.environment(code), NOTES: str(notes), NOW: str(folder / "now")}
    command = [sys.executable, "-P", "-m", "tests.mutants.record", str(folder), str(jobs)]
    with subprocess.Popen([*command, *arguments], env=environ) as recording:
        try:
            failed = recording.wait()
        finally:
            recording.terminate()
    if failed:
        raise SystemExit("the tests cannot be collected")
    made = Map()
    names = [""]
    for line in (folder / "tests").read_text().splitlines():
        seconds, _, name = line.partition(" ")
        names.append(name)
        if float(seconds) < 0:
            made.unproved.append(name)
        else:
            made.seconds[name] = float(seconds)
    reached: dict[str, set[str]] = {_name(place): set() for place in places}
    for line in notes.read_text().splitlines():
        test, place = map(int, line.split())
        reached[_name(places[place])].add(names[test])
    made.reached = {name: sorted(tests) for name, tests in reached.items()}
    return made


@dataclass(frozen=True, slots=True)
class Verdict:
    change: Change
    word: str
    """"noticed", "SURVIVED", "NOT REACHED"."""
    test: str = ""
    how: str = ""
    tests: int = 0
    seconds: float = 0.0


class Engine:
    def __init__(self, session: pytest.Session, known: Map, folder: Path, patience: float) -> None:
        self._patience = patience
        self._session, self._map, self._folder = session, known, folder
        self._items = {item.nodeid: item for item in session.items}
        self._functions = swap.Functions()
        self._controls: dict[str, bool] = {}
        self._number = 0
        kept = KEPT / "noticed.json"
        self._noticed: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}

    def run(self, changes: Iterable[Change], jobs: int) -> Iterable[Verdict]:
        for verdict in side_by_side((self._attempt(one) for one in changes), jobs):
            self._noticed.pop(verdict.change.label, None)
            if verdict.word == "noticed":
                self._noticed[verdict.change.label] = verdict.test
            KEPT.mkdir(exist_ok=True)
            kept = json.dumps(self._noticed, indent=1, sort_keys=True)
            (KEPT / "noticed.json").write_text(kept)
            yield verdict

    def _attempt(self, change: Change) -> Work[Verdict]:
        names = [name for name in self._map.ordered(change) if name in self._items]
        last = self._noticed.get(change.label)
        if last in names:
            names = [last, *(name for name in names if name != last)]
        if not names:
            return Verdict(change, "NOT REACHED")
        self._number += 1
        folder = self._folder / str(self._number)
        swap.write({change.module: change.code}, folder / "code")
        fresh = self._map.at_import(change) or not self._functions.can_take(change)
        left, seconds, passed = names, 0.0, 0
        while left and seconds < BUDGET_S:
            some = (
                _first_files(left, FILES_AT_ONCE * (1 if left is names else 10)) if fresh else left
            )
            job = self._fresh(some, folder) if fresh else self._forked(change, some, folder)
            job.budget = BUDGET_S - seconds + 30
            job = yield job
            seconds += job.seconds
            test, how = _outcome(job)
            passed += sum(line.startswith("passed ") for line in job.lines)
            if test and job.killed and seconds >= BUDGET_S and how == "hangs":
                break  # no hang: its time was over
            before = _started(job)[:-1]
            if test and (yield from self._is_proof(change, test, before, fresh, folder)):
                shutil.rmtree(folder, ignore_errors=True)
                return Verdict(change, "noticed", test, how, passed, seconds)
            gone = {test} if test else set(some)
            left = [name for name in left if name not in gone.union(_started(job) if test else ())]
        over = f", {len(left)} more had no time" if left else ""
        shutil.rmtree(folder, ignore_errors=True)
        return Verdict(change, "SURVIVED", how=f"{passed} tests passed{over}", seconds=seconds)

    def _limit(self, line: str) -> float:
        word, _, name = line.partition(" ")
        if word == "start":
            return self._patience + 10 * self._map.seconds.get(name, 0.0)
        if word in ("failed", "passed", "done"):
            return 20.0
        return 60.0 if line else 300.0  # a new interpreter collects first

    def _forked(self, change: Change | None, names: Sequence[str], folder: Path) -> Job:
        items = [self._items[name] for name in names]

        def work(tell: Tell) -> None:
            if change is not None:
                swap.take_at_import(folder / "code")
                self._functions.take(change)
            run_tests(self._session, items, tell, folder / "log")

        return Job(work, limit=self._limit)

    def _fresh(self, names: Sequence[str], folder: Path) -> Job:
        (folder / "names").write_text("".join(f"{name}\n" for name in names))
        command = ("tests.mutants.inside", str(folder / "log"), str(folder / "names"))
        return Job(None, command, limit=self._limit, environ=swap.environment(folder / "code"))

    def _is_proof(
        self,
        change: Change,
        test: str,
        before: Sequence[str],
        fresh: bool,
        folder: Path,
    ) -> Work[bool]:
        """Whether the test failed because of the change and not by chance: it passes by itself
        without it and fails again by itself with it; or it fails again after those that ran before
        it, and passes after them without it.
        """
        if test not in self._items:  # it could not even be imported
            return True
        if test not in self._controls:
            self._controls[test] = yield from self._passes([test])
        if not self._controls[test]:
            return False
        for names in ([test], [*before, test]) if before else ([test],):
            again = (
                yield self._fresh(names, folder) if fresh else self._forked(change, names, folder)
            )
            if _outcome(again)[0] == test:
                return len(names) == 1 or (yield from self._passes(names))
        return False

    def _passes(self, names: Sequence[str]) -> Work[bool]:
        """Whether the last of them passes without a change."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        job = yield self._forked(None, names, folder)
        return f"passed {names[-1]}" in job.lines


def _started(job: Job) -> list[str]:
    return [line[6:] for line in job.lines if line.startswith("start ")]


def _first_files(names: Sequence[str], most: int) -> list[str]:
    files = list(dict.fromkeys(map(_file, names)))[:most]
    return [name for name in names if _file(name) in files]


def _outcome(job: Job) -> tuple[str, str]:
    """The test that noticed, and how where it did not just fail."""
    running = ""
    for line in job.lines:
        word, _, name = line.partition(" ")
        if word == "failed":
            return name, ""
        if word == "start":
            running = name
    if "done" in job.lines:
        return "", ""
    return running or "at the import", "hangs" if job.killed else "the process ends"


def run(
    changes: Sequence[Change],
    known: Map,
    arguments: Sequence[str],
    jobs: int,
    folder: Path,
    patience: float,
) -> list[Verdict]:
    """Collect and try all; yields each verdict as it comes."""
    verdicts: list[Verdict] = []

    def work(session: pytest.Session) -> None:
        for verdict in Engine(session, known, folder, patience).run(changes, jobs):
            verdicts.append(verdict)
            print(line_of(verdict), flush=True)

    if not collect(arguments, work):
        raise SystemExit("the tests cannot be collected")
    return verdicts


def line_of(verdict: Verdict) -> str:
    more = " ".join(filter(None, (verdict.test, f"({verdict.how})" if verdict.how else "")))
    return f"{verdict.word:9} {verdict.change.label} · {more or verdict.change.file}"
