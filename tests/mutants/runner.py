"""Runs tests in a copy of the repository, with or without a mutant."""

from __future__ import annotations

import ast
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from client_agent.storage.remove_tree import remove_tree
from tests.mutants.mutant import Mutant
from tests.mutants.outcomes import FILE

ROOT = Path(__file__).resolve().parents[2]
TEST_TIMEOUT_S = 60
RUN_TIMEOUT_S = 300
RUNNING: set[int] = set()
"""Leaders of the process groups of tests that run now."""


@dataclass(frozen=True)
class Run:
    """The outcome of one run of pytest; names are node ids."""

    passed: frozenset[str]
    failed: frozenset[str]
    hung: bool
    error: str
    """Why the tests could not be run at all; "" if they could."""

    def failed_by(self, test: str) -> bool:
        return self.hung or any(belongs(name, test) for name in self.failed)

    def passed_by(self, test: str) -> bool:
        """Whether it ran and passed: a test that is skipped proves nothing."""
        return not self.failed_by(test) and any(belongs(name, test) for name in self.passed)


def belongs(name: str, test: str) -> bool:
    """Whether a test that ran is ``test``, or one of its parameters."""
    return name == test or name.startswith((f"{test}[", f"{test}::"))


class Copy:
    """A copy of the repository: what git knows, and what is new."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self._temporary = folder / "tmp"
        self._outcomes = folder / "outcomes"
        self._changes = 0
        self.root.mkdir(parents=True)
        listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, target)

    def run(self, tests: Sequence[str], *options: str) -> Run:
        """Run these tests here. Slow ones are run, too."""
        remove_tree(self._temporary)
        self._outcomes.write_text("")
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-m",
            "",
            f"--timeout={TEST_TIMEOUT_S}",
        ]
        command += ["-p", "tests.mutants.outcomes", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += [f"--basetemp={self._temporary}", *options, *tests]
        environ = {**os.environ, "PYTHONPATH": str(self.root), FILE: str(self._outcomes)}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the copy's own; starts are quicker with it
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        hung = False
        RUNNING.add(process.pid)
        try:
            output, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            hung = True
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        finally:
            RUNNING.discard(process.pid)
        outcomes: dict[str, set[str]] = {"passed": set(), "failed": set()}
        for line in self._outcomes.read_text().splitlines():
            outcome, _, name = line.partition(" ")
            outcomes[outcome].add(ast.literal_eval(name))
        return Run(
            frozenset(outcomes["passed"]),
            frozenset(outcomes["failed"]),
            hung,
            "" if hung or process.returncode in (0, 1) else output[-2000:],
        )

    def mutated(self, mutant: Mutant) -> Run:
        """Run the mutant's tests with its change."""
        path = self.root / mutant.file
        text, stat = path.read_text(), path.stat()
        path.write_text(text.replace(mutant.old, mutant.new))
        # Python uses compiled code again if the seconds of the time and the size are the same.
        self._changes += 1
        os.utime(path, (stat.st_atime, int(stat.st_mtime) + self._changes))
        try:
            return self.run(mutant.tests, *(["-x"] if len(mutant.tests) == 1 else []))
        finally:
            path.write_text(text)
            os.utime(path, (stat.st_atime, stat.st_mtime))


def problem(mutant: Mutant) -> str:
    """Why the mutant cannot be used; "" if it can."""
    if not (ROOT / mutant.file).is_file():
        return f"there is no {mutant.file}"
    text = (ROOT / mutant.file).read_text()
    if mutant.old == mutant.new:
        return "it changes nothing"
    if (count := text.count(mutant.old)) != 1:
        return f"what it takes out occurs {count} times in {mutant.file}"
    if not mutant.tests:
        return "it names no test"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        if not (ROOT / file).is_file() or name.partition("[")[0] not in functions(ROOT / file):
            return f"there is no test {test}"
    return ""


def syntax_problem(mutant: Mutant) -> str:
    """Why the file with the mutant cannot be compiled; "" if it can."""
    if mutant.file.endswith(".py"):
        try:
            ast.parse((ROOT / mutant.file).read_text().replace(mutant.old, mutant.new))
        except SyntaxError as error:
            return f"{mutant.file} is not valid Python with it: {error}"
    return ""


@functools.cache
def functions(path: Path) -> set[str]:
    """The tests of a file: ``name``, ``Class::name``, or what a machine's TestCase is assigned to."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            names |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, kinds)}
    return names
