"""Takes each protection out in turn and runs the tests that come by there, the quickest first,
until one notices. Prints its rule, what is taken out and the test that noticed; ends with 1 if a
mutant survived or no test comes by where it is.

First the test is tried that noticed last time. For what it does not notice again, which test comes
by where is recorded with all tests that may notice, unchanged; those that do not pass then, or are
skipped, prove nothing and are named. What noticed is written to noticed.txt. To see whether new
tests hold what those that they replace did: --only the files of that part, --tests the new ones
alone. Mutants in the old form are tried with --old, or where --only, --tests or words choose.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import engine, forms, noticed
from tests.mutants.forks import end_with_this_process
from tests.mutants.forms import Change, Mutant
from tests.mutants.inside import TEMPORARY, collect


def is_chosen(mutant: Mutant, given: argparse.Namespace) -> bool:
    """In the old form those that are asked for; of both where some are chosen."""
    label = f"{mutant.rule} · {mutant.what} · {mutant.where}"
    if not mutant.file.startswith(given.only):
        return False
    if given.words and not any(word in label for word in given.words):
        return False
    some = given.only or given.words or given.tests or given.mutants
    return bool(some) or given.old is not mutant.is_new


def change_of(mutant: Mutant) -> Change:
    try:
        return mutant.change()
    except LookupError as problem:
        raise SystemExit(f"{mutant.rule} · {mutant.what}: {problem}") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    add = parser.add_argument
    add("words", nargs="*", help="only mutants with one of these in their line")
    add("--only", metavar="PREFIX", default="", help="only mutants of files that start so")
    add("--tests", nargs="+", metavar="PATH", help="files, folders or single tests that may notice")
    add("--jobs", type=int, default=2 + len(os.sched_getaffinity(0)))  # two of them wait
    add("--slow", action="store_true", help="slow tests may notice, too")
    add("--old", action="store_true", help="those in the old form, by night")
    add("--mutants", type=Path, help="a file of others")
    add("--patience", type=float, default=5.0, help="seconds until a test hangs")
    given = parser.parse_args()
    mutants = [*forms.read(given.mutants)] if given.mutants else forms.all_of_them()
    changes = [change_of(mutant) for mutant in mutants if is_chosen(mutant, given)]
    if not changes:
        raise SystemExit("no mutant is like this")
    arguments = [*(given.tests or ()), *(("-m", "not soak") if given.slow else ())]
    end_with_this_process()
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    folder.chmod(0o755)
    os.environ[TEMPORARY] = str(folder)
    began, places = time.monotonic(), engine.write_notes(changes, folder)
    words, wrong = Counter[str](), list[str]()
    before, found = noticed.read(), dict[str, noticed.Noticed]()

    def tell(change: Change, verdict: engine.Verdict) -> None:
        line = verdict.line(change)
        print(line, flush=True)
        words[verdict.word] += 1
        wrong.extend([line] * (verdict.word != "noticed"))
        if verdict.next_time:
            found[change.label] = verdict.next_time

    def work(session: pytest.Session) -> None:
        again = engine.last_time(session, before, changes, given.jobs, folder, given.patience)
        for change, verdict in again:
            tell(change, verdict)
        left = [one for one in changes if one.label not in found]
        if not left:
            return
        print(f"{len(found)} of {len(changes)} noticed as before, {time.monotonic() - began:.0f} s")
        known = engine.record(session, places, given.jobs, folder)
        print(f"{len(known.seconds)} tests passed unchanged, {time.monotonic() - began:.0f} s")
        for name in known.unproved:
            print(f"did not pass, and proves nothing: {name}")
        for change, verdict in engine.Engine(session, left, known, given.patience).run(
            given.jobs, folder
        ):
            tell(change, verdict)

    try:
        if not collect(arguments, work):
            raise SystemExit("the tests cannot be collected")
        if words.total() < len(changes):
            raise SystemExit("ended early")  # pytest keeps what was raised in there
    finally:
        from client_agent.storage.remove_tree import remove_tree  # what it reaches was noted

        for mount in Path("/proc/mounts").read_text().splitlines():  # of tests that were killed
            if (place := mount.split()[1]).startswith(f"{folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False)
        remove_tree(folder)
    if not given.mutants:
        names = {f"{one.rule} · {one.what}" for one in mutants}
        noticed.write({name: one for name, one in before.items() if name in names} | found)
    print(f"{words.total()} mutants in {time.monotonic() - began:.0f} s:", dict(words))
    for line in wrong:
        print(line)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
