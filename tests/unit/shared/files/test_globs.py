"""Which files patterns choose."""

from __future__ import annotations

import time

import pytest

from shared.files.globs import MAX_LENGTH, Globs, check_pattern


@pytest.mark.parametrize(
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
def test_a_pattern_chooses_files(pattern: str, chosen: list[str], others: list[str]) -> None:
    globs = Globs([check_pattern(pattern)])
    assert [path for path in chosen if globs.matching(path) != pattern] == []
    assert [path for path in others if globs.matching(path) is not None] == []


def test_any_of_several_patterns_will_do() -> None:
    globs = Globs(["a", "b/*"])
    assert [globs.matching(path) for path in ("b/x", "a", "c")] == ["b/*", "a", None]
    assert Globs([]).matching("a") is None


@pytest.mark.parametrize(
    "text",
    ["", " ", "/", "/etc", "../x", "a/../b", "a//b", "./a", "a\\b", "a\nb", "x" * (MAX_LENGTH + 1)],
)
def test_what_can_choose_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        check_pattern(text)


def test_no_pattern_takes_long() -> None:
    name = "a" * 255
    start = time.process_time()
    for pattern in ("*a" * 100 + "b", "/".join(["**", "*a*"] * 16), "**/" * 31 + "b"):
        globs = Globs([check_pattern(pattern)])
        assert globs.matching("/".join([name] * 4)) in (None, pattern)
    assert time.process_time() - start < 2


def test_each_file_of_many_costs_little() -> None:
    patterns = [f"{'**/*/' * 15}**/{at}" for at in range(32)]
    folder = "/".join("a" * 30)
    globs = Globs(patterns)
    start = time.process_time()
    assert {globs.matching(f"{folder}/f{at}") for at in range(4_000)} == {None}
    assert time.process_time() - start < 2  # in place of half a minute


def test_the_order_of_paths_means_nothing() -> None:
    paths = ["a", "a/b", "a/b/c", "a/c", "b/a/c", "b", "a/b/c/d", "c/a/b", "x/y/z/a/b/c"]
    patterns = ["a/b", "**/a/**/c", "b/**", "**", "c/*/b", "**/**/c", "z/**/a/b/*"]
    for pattern in patterns:
        alone = {path: Globs([pattern]).matching(path) for path in paths}
        globs = Globs([pattern])
        for path in (*paths, *reversed(paths)):
            assert globs.matching(path) == alone[path], (pattern, path)
