"""Patterns that choose files of a result (``outputs``), and what of a folder is not sent."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from ferryman.errors import BadArgument, BadBundle
from ferryman.ignore import Ignore, Pattern, ignore_for
from shared.files.globs import MAX_LENGTH, Globs, check_pattern
from tests.kit.cost import steps
from tests.kit.each import each


@each(
    ("pattern", "chosen", "others"),
    [
        ("*.csv", ["a.csv", "out/deep/b.csv"], ["a.csv.gz", "csv", "x/csv.txt"]),
        ("out/*.csv", ["out/a.csv"], ["a.csv", "out/deep/b.csv", "x/out/a.csv"]),
        ("out/**/*.csv", ["out/a.csv", "out/1/2/b.csv"], ["a.csv", "outer/a.csv"]),
        ("**/best.pdb", ["best.pdb", "a/b/best.pdb"], ["best.pdb.gz"]),
        ("out", ["out", "out/a", "x/out/b/c"], ["outer/a", "a/out.txt"]),
        ("out/", ["out/a", "out/b/c"], ["outer/a"]),
        ("run/?/log[12]", ["run/a/log1", "run/b/log2/x"], ["run/ab/log1", "run/a/log3"]),
        ("a/**", ["a/b", "a/b/c", "a"], ["b/a"]),
        ("*", ["a", "b/c"], []),
        ("é*", ["éa"], ["ea"]),
    ],
)
def test_a_pattern_chooses_files(pattern, chosen, others):
    globs = Globs([check_pattern(pattern)])
    assert [path for path in chosen if globs.matching(path) != pattern] == []
    assert [path for path in others if globs.matching(path) is not None] == []


def test_any_of_several_patterns_will_do():
    globs = Globs(["a", "b/*"])
    assert [globs.matching(path) for path in ("b/x", "a", "c")] == ["b/*", "a", None]
    assert Globs([]).matching("a") is None


@each(
    "text",
    ["", " ", "/", "/etc", "../x", "a/../b", "a//b", "./a", "a\\b", "a\nb", "x" * (MAX_LENGTH + 1)],
)
def test_what_can_choose_nothing_is_refused(text):
    with pytest.raises(ValueError, match="is no"):
        check_pattern(text)


PATHS = ["a", "a/b", "a/b/c", "a/c", "b/a/c", "b", "a/b/c/d", "c/a/b", "x/y/z/a/b/c"]


@each("pattern", ["a/b", "**/a/**/c", "b/**", "**", "c/*/b", "**/**/c", "z/**/a/b/*"])
def test_the_order_of_paths_means_nothing(pattern):
    alone = {path: Globs([pattern]).matching(path) for path in PATHS}
    globs = Globs([pattern])
    for path in (*PATHS, *reversed(PATHS)):
        assert globs.matching(path) == alone[path], path


@each("pattern", ["*a" * 100 + "b", "/".join(["**", "*a*"] * 16), "**/" * 31 + "b"])
def test_no_pattern_takes_long(pattern):
    """One that backtracks would never be done, in a single step."""

    def match(depth: int) -> None:
        Globs([check_pattern(pattern)]).matching("/".join(["a" * 255] * depth))

    few, many = (steps(functools.partial(match, depth)) for depth in (16, 32))
    assert many <= 2.1 * few


def test_each_file_of_many_costs_its_name_only():
    """Not its folders again, which are the same for all."""
    patterns = [f"{'**/*/' * 15}**/{at}" for at in range(32)]
    folder = "/".join("a" * 30)

    def match(count: int) -> None:
        globs = Globs(patterns)
        assert {globs.matching(f"{folder}/f{at}") for at in range(count)} == {None}

    few, many = (steps(functools.partial(match, count)) for count in (50, 100))
    assert many - few < 50 * len(patterns) * 2


# ---------------------------------------------------------------------------- what is left out

NAMES = (
    *("run.sh", "a.o", "src/a.o", "src/a.c", "src/build/x", "build/y", "build/keep/z", "a b"),
    *("src/deep/er/a.o", "#x", "!y", "log1", "log10", "x-y", "data/in.txt", "src/data/in.txt"),
)
"""All are files."""
LISTS = [
    ["*.o"], ["/*.o"], ["src/*.o"], ["src/**/*.o"], ["**/data"], ["data/"], ["a.o/"], ["/build"],
    ["build/"], ["build/**"], ["src/build"], ["log?"], ["log[0-9]"], ["log[!2-9]"], ["x[-_]y"],
    ["*.o", "!src/a.o"], ["*", "!run.sh"], ["# comment", "", "   ", "a b"], ["\\#x", "\\!y"],
    ["src/", "!src/a.c"], ["in.txt   "], ["src/*/in.txt"], ["src/**/**/in.txt"], ["**"],
]  # fmt: skip


def ignored(patterns: list[str]) -> set[str]:
    """The names that are left out, those in folders that are left out, too."""
    parsed = [one for text in patterns if (one := Pattern.parse(text, "here"))]
    ignore = Ignore(parsed, usual=False)

    def out(name: PurePosixPath) -> bool:
        folders = reversed(name.parents[:-1])
        return any(ignore(str(one), Path(), True) for one in folders) or ignore(
            str(name), Path(), False
        )

    return {name for name in NAMES if out(PurePosixPath(name))}


def test_patterns_mean_what_they_mean_to_git(tmp_path):
    def git(*words: str) -> str:
        command = ["git", "-c", "core.excludesFile=", *words]
        return subprocess.check_output(command, cwd=tmp_path, text=True)

    git("init", "-q")
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    wrong = []
    for patterns in LISTS:
        (tmp_path / ".git/info/exclude").write_text("\n".join(patterns) + "\n")
        kept = git("ls-files", "-z", "--others", "--exclude-standard")
        if ignored(patterns) != set(NAMES) - set(kept.split("\0")):
            wrong.append(patterns)
    assert wrong == []


@each("text", ["/", "!"])
def test_a_pattern_that_means_nothing_is_named(text):
    with pytest.raises(BadArgument, match=r"^\.ferrymanignore, line 3: "):
        Pattern.parse(text, ".ferrymanignore, line 3")


def test_an_ignore_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / ".ferrymanignore").write_bytes(b"\xff\n")
    with pytest.raises(BadBundle, match="no text in UTF-8"):
        ignore_for(tmp_path, (), everything=False)
    assert ignore_for(tmp_path, (), everything=True).left_out == []


@each("text", ["*a" * 120 + "b", "**/a/" * 60 + "*a*a*b", "**/" * 200 + "x", "*a*/" * 30 + "b"])
def test_no_pattern_of_a_folder_takes_long(text):
    pattern = Pattern.parse(text, "")
    assert pattern is not None
    few, many = (
        steps(functools.partial(pattern.fits, "a/" * depth + "a" * 200)) for depth in (40, 80)
    )
    assert many <= 2.2 * few + 50


@each(
    ("text", "fits", "others"),
    [
        ("**/a*b*c/**", ["axbc/x", "q/abcbc/x/y"], ["abc", "q/abx/x"]),
        ("a/**/b/**/c", ["a/b/c", "a/x/b/b/y/c"], ["a/c", "a/b/x", "xa/b/c"]),
        ("a/**/**", ["a/b", "a/b/c"], ["b/a"]),
        ("**/**", ["a", "a/b"], []),
        ("*[*]*", ["a*b"], ["ab"]),
    ],
)
def test_patterns_with_several_wildcards_fit(text, fits, others):
    pattern = Pattern.parse(text, "")
    assert pattern is not None
    assert [one for one in fits if not pattern.fits(one)] == []
    assert [one for one in others if pattern.fits(one)] == []
