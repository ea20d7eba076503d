"""Runs every mutant in a copy of the repository: ``make mutants``."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from client_agent.remove import remove_tree
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


class Copy:
    """A copy of what belongs to the repository."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.root.mkdir(parents=True)
        listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, target)

    def fails(self, test: str) -> bool:
        """Whether the test fails here; a mutant that hangs is noticed, too."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
        environ = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        base = self.root.parent / "tmp"
        remove_tree(base)
        command.append(f"--basetemp={base}")
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environ, capture_output=True, text=True, timeout=180
            )
        except subprocess.TimeoutExpired:
            return True
        if done.returncode not in (0, 1):
            raise SystemExit(f"{test} cannot be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.returncode == 1

    def survived(self, mutant: Mutant) -> list[str]:
        """Those of the mutant's tests that pass all the same."""
        path = self.root / mutant.file
        text = path.read_text()
        path.write_text(text.replace(mutant.old, mutant.new, 1))
        try:
            return [test for test in mutant.tests if not self.fails(test)]
        finally:
            path.write_text(text)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the copies, open to the uids of tests; trees in it may be as deep as they like."""
    folder = Path(tempfile.mkdtemp(prefix="ferryman-mutants-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        remove_tree(folder)


def run(mutants: Iterable[Mutant], jobs: int) -> int:
    """Print a line for each; how many survived, or were never whole."""
    chosen = list(mutants)
    bad = 0
    with scratch() as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(folder / str(number)))

        def whole(test: str) -> bool:
            copy = copies.get()
            try:
                return not copy.fails(test)
            finally:
                copies.put(copy)

        def survived(mutant: Mutant) -> list[str]:
            copy = copies.get()
            try:
                return copy.survived(mutant)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as threads:
            tests = sorted({test for mutant in chosen for test in mutant.tests})
            for test, passes in zip(tests, threads.map(whole, tests), strict=True):
                if not passes:
                    bad += 1
                    print(f"BROKEN    {test} fails although nothing was taken out", flush=True)
            for mutant, left in zip(chosen, threads.map(survived, chosen), strict=True):
                bad += bool(left)
                verdict = "SURVIVED " if left else "noticed  "
                print(f"{verdict} {mutant.rule:5} {mutant.protection}", *left, flush=True)
    print(f"{len(chosen)} mutants, {bad} not noticed or without a test that passes")
    return bad


def lines() -> list[str]:
    """The table of the threat model."""
    found = ["| rule | protection | where | fails without it |", "|---|---|---|---|"]
    for mutant in MUTANTS:
        names = []
        for test in mutant.tests:
            file, _, name = test.partition("::")
            names.append(f"`{name}` ({Path(file).name})")
        where = mutant.file.removeprefix("client_agent/")
        found.append(f"| {mutant.rule} | {mutant.protection} | `{where}` | {', '.join(names)} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants with one of these in their line")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--table", action="store_true", help="print the threat model's table")
    given = parser.parse_args()
    if given.table:
        print(*lines(), sep="\n")
        return
    chosen = [
        mutant
        for mutant in MUTANTS
        if not given.words
        or any(word in f"{mutant.rule} {mutant.file} {mutant.protection}" for word in given.words)
    ]
    raise SystemExit(bool(run(chosen, given.jobs)))


if __name__ == "__main__":
    main()
