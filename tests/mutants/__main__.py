"""Takes each protection out in turn and runs the tests that come by there, the quickest first,
until one notices. Prints its rule, what is taken out and the test that noticed; ends with 1 if a
mutant survived or no test comes by where it is.

Which test comes by where is recorded first, with all tests that may notice, unchanged; those that
do not pass then, or are skipped, prove nothing and are named. To see whether new tests hold what
those that they replace did: --only the files of that part, --tests the new ones alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from client_agent.storage.remove_tree import remove_tree
from tests.mutants import engine, old_form
from tests.mutants.changes import Change, from_text


def chosen(given: argparse.Namespace) -> list[Change]:
    found = []
    for mutant in old_form.all_of_them(given.mutants):
        label = f"{mutant.rule} · {mutant.protection} · {mutant.file}"
        if not mutant.file.startswith(given.only) or not mutant.file.endswith(".py"):
            continue
        if given.words and not any(word in label for word in given.words):
            continue
        if mutant.problem:
            raise SystemExit(f"{label}: {mutant.problem}")
        found.append(from_text(mutant))
    return found


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
    parser.add_argument("--reuse-map", action="store_true", help="do not record first")
    parser.add_argument("--mutants", type=Path, default=old_form.FOLDER, help="a folder of others")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds until a test hangs")
    given = parser.parse_args()
    changes = chosen(given)
    if not changes:
        raise SystemExit("no mutant is like this")
    arguments = [*(given.tests or ()), *(("-m", "not soak") if given.slow else ())]
    folder = Path(tempfile.mkdtemp(prefix="ferryman-mutants-"))
    folder.chmod(0o755)
    began = time.monotonic()
    try:
        if given.reuse_map:
            known = engine.Map.kept()
        else:
            (folder / "record").mkdir()
            known = engine.record(changes, arguments, given.jobs, folder / "record")
            known.save()
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
