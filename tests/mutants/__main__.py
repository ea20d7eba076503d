"""Takes each protection out in turn and runs the tests that come by there, the quickest first,
until one notices. Prints its rule, what is taken out and the test that noticed; ends with 1 if a
mutant survived or no test comes by where it is.

Which test comes by where is recorded first, with all tests that may notice, unchanged; those that
do not pass then, or are skipped, prove nothing and are named. To see whether new tests hold what
those that they replace did: --only the files of that part, --tests the new ones alone. Mutants in
the old form are tried with --old, or where --only, --tests or words choose.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from client_agent.storage.remove_tree import remove_tree
from tests.mutants import engine, forms
from tests.mutants.forks import end_with_this_process
from tests.mutants.forms import Change, Mutant
from tests.mutants.inside import TEMPORARY


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
    parser.add_argument("words", nargs="*", help="only mutants with one of these in their line")
    parser.add_argument(
        "--only", metavar="PREFIX", default="", help="only mutants of files that start so"
    )
    parser.add_argument(
        "--tests", nargs="+", metavar="PATH", help="files, folders or single tests that may notice"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--slow", action="store_true", help="slow tests may notice, too")
    parser.add_argument("--old", action="store_true", help="those in the old form, by night")
    parser.add_argument("--mutants", type=Path, help="a file of others")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds until a test hangs")
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
    began = time.monotonic()
    try:
        (folder / "record").mkdir()
        known = engine.record(changes, arguments, given.jobs, folder / "record")
        took = time.monotonic() - began
        print(f"{len(known.seconds)} tests passed without a change in {took:.0f} s")
        for name in known.unproved:
            print(f"did not pass, and proves nothing: {name}")
        began = time.monotonic()
        verdicts = engine.run(changes, known, arguments, given.jobs, folder, given.patience)
    finally:
        remove_tree(folder)
    words = Counter(verdict.word for verdict in verdicts)
    print(f"{len(verdicts)} mutants in {time.monotonic() - began:.0f} s:", dict(words))
    for verdict in verdicts:
        if verdict.word != "noticed":
            print(engine.line_of(verdict))
    raise SystemExit(bool(words.keys() - {"noticed"}))


if __name__ == "__main__":
    main()
