"""Names of files: taken, refused, composed, side by side, for every system; patterns of them."""

import os
import subprocess
import tracemalloc
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.errors import BadArgument, BadBundle
from ferryman.ignore import Ignore, Pattern, ignore_for
from shared.files import names
from shared.files.globs import MAX_LENGTH, Globs, check_pattern
from shared.files.names import PathSet, UnsafeName, safe_path
from tests.formats.generated_bundles import FINE
from tests.kit.cost import peak
from tests.kit.each import each

TAKEN = [
    *FINE, "run.sh", "data/in.pdb", "a b/c d", "漢字/é.txt", "con2", "x" * 255, "a /b", "...",
    "/".join(["d"] * 64), "x" + "\u0334" * 30, "2024-01-01T12:00:00.nc",
]  # fmt: skip
REFUSED = [
    ("", "empty"), ("/etc/passwd", "absolute"), ("//x", "absolute"), ("..", "'..'"),
    ("a/../b", "'..'"), ("a/..", "'..'"), (".", "'.'"), ("./a", "'.'"), ("a/./b", "'.'"),
    ("a//b", "empty component"), ("a/", "empty component"), ("a\0b", "NUL"),
    ("a\nb", "control character (U+000A)"), ("a\x1b[2J", "control"), ("a\x7f", "control"),
    ("a\u0085b", "control"), ("a\u202eb", "format character (U+202E)"), ("a\u200bb", "format"),
    ("\ufeffa", "format"), ("a\u2028b", "line separator"), ("a\\b", "backslash"),
    ("\ud800", "surrogate"), ("e" + "\u0301" * 31, "more than 30 combining marks"),
    ("x" * 256, "longer than 255"), ("é" * 128, "longer than 255"),
    ("/".join(["d" * 200] * 6), "longer than 1024"), ("/".join(["é" * 100] * 6), "than 1024"),
    ("/".join(["d"] * 65), "deeper than 64"),
]  # fmt: skip


@each("name", TAKEN)
def test_what_linux_can_store_is_taken_composed(name):
    assert safe_path(name) == unicodedata.normalize("NFC", name)


@each(("name", "why"), REFUSED)
def test_what_is_dangerous_or_impossible_is_refused_with_the_reason(name, why):
    with pytest.raises(UnsafeName) as caught:
        safe_path(name)
    assert why in caught.value.why
    assert caught.value.name == name


@given(st.text(max_size=40) | st.lists(st.text(max_size=12), max_size=6).map("/".join))
def test_what_is_taken_stays_below_its_root_and_is_stable(name):
    try:
        path = safe_path(name)
    except UnsafeName as problem:
        str(problem).encode()  # can be shown
        return
    assert path == safe_path(path) == unicodedata.normalize("NFC", name)
    assert os.path.normpath(f"/root/{path}") == f"/root/{path}"
    assert path.encode().decode() == path


def test_what_is_shown_of_a_name_cannot_play_with_the_terminal():
    assert names.shown("a\x1b[2J\u202e\ud800\\") == r"“a\x1b[2J\u202e\ud800\\”"
    assert len(names.shown("x" * 10_000)) < 150


# ---------------------------------------------------------------------------- side by side


def tree_of(*paths: str, folders: Iterable[str] = ()) -> PathSet:
    tree = PathSet()
    for folder in folders:
        tree.add_folder(folder)
    for path in paths:
        tree.add(path)
    tree.check()
    return tree


@each(
    ("first", "second", "code"),
    [
        ("a", "a", "duplicate_name"),
        ("d/a", "d/a", "duplicate_name"),
        ("a", "a/b", "file_and_folder"),
        ("a/b", "a", "file_and_folder"),
        ("a/b", "a/b/c/d", "file_and_folder"),
        ("a/b/c/d", "a/b", "file_and_folder"),
    ],
)
def test_paths_that_cannot_lie_side_by_side_are_refused(first, second, code):
    between = ("a.b", "a-", "a!/b", "A", "a/b!", "a/b\x01")  # what sorts between them
    with pytest.raises(UnsafeName) as caught:
        tree_of(*(f"{one}/x" for one in between), first, second)
    assert (caught.value.code, caught.value.name) == (code, second)


@each(("files", "folders"), [(["a/b"], []), (["a"], []), ([], ["a/b/c"]), ([], ["a/b/c/d"])])
def test_a_folder_may_repeat_but_not_be_a_file(files, folders):
    tree_of("a/b/c", "A", folders=("a/b", "a/b", "a"))
    with pytest.raises(UnsafeName) as caught:
        tree_of("a/b/c", "A", *files, folders=("a/b", "a/b", "a", *folders))
    assert caught.value.code == "file_and_folder"


@given(st.lists(st.lists(st.sampled_from("aAbéÉ.!"), min_size=1, max_size=4).map("/".join)))
def test_paths_agree_with_comparing_every_prefix_of_every_path(paths):
    above = {path[:i] for path in paths for i, c in enumerate(path) if c == "/"}
    if len(set(paths)) == len(paths) and not above & set(paths):
        tree_of(*paths)
    else:
        with pytest.raises(UnsafeName):
            tree_of(*paths)
    every = above | set(paths)
    clash = any(names.fold(a) == names.fold(b) and a != b for a in every for b in every)
    found = {one.code for one in names.problems(list(dict.fromkeys(paths)))}
    assert ("case_clash" in found) == clash


def test_a_tree_holds_the_paths_and_nothing_of_their_folders():
    paths = ["/".join([f"{n:04}", *["d"] * 62, "f"]) for n in range(500)]
    tree = PathSet()

    def fill() -> int:
        for path in paths:
            tree.add(path)
        return tracemalloc.get_traced_memory()[0]

    held, _ = peak(fill)
    _, most = peak(tree.check)
    assert held < 200 * len(paths)  # a dict's slot; each folder of its own would be 64 of them
    assert most < 600 * len(paths)


@each(
    ("paths", "root"),
    [
        *((paths, "") for paths in (["run.sh"], ["a/x", "run.sh"], ["run.sh", "top/run.sh"])),
        *((paths, "top/") for paths in (["top/run.sh"], ["top/run.sh", "top/data/x"])),
        *((paths, None) for paths in ([], ["Run.sh"], ["top/run.sh", "other"], ["run.sh/x"])),
        *((["top/run.sh", "top2/x"], None), (["top/sub/run.sh"], None), (["top/run.sh/x"], None)),
    ],
)
def test_the_root_is_where_run_sh_lies_or_the_one_folder_that_holds_it(paths, root):
    assert names.find_root(paths) == names.find_root(reversed(paths)) == root


# ---------------------------------------------------------------------------- every system

ODD = [
    ("C:x", "colon"), ("d/2024-01-01T12:00:00.nc", "colon"), ("a/lpt9/b", "device"),
    *((f"a{sign}b", "the character") for sign in '<>"|?*'), ("com¹", "device"), ("CON", "device"),
    ("nul.txt", "device"), ("a/Com1.tar.gz", "device"), ("aux .txt", "device"), ("a.", "dot or"),
    ("CONOUT$", "device"), ("a /b", "dot or a space"), ("...", "dot or a space"),
]  # fmt: skip
FOR_ALL = ["con2", "console", "com10", "a.b/c d", ".x", "..a", "auxiliary.h", "x-aux", "é"]


@each(("name", "why"), ODD + [(name, None) for name in FOR_ALL])
def test_what_other_systems_cannot_store_is_reported_with_the_reason(name, why):
    assert safe_path(name) == name
    reason = names.why_not_portable(name)
    assert (reason is None) == (why is None)
    assert (why or "") in (reason or "")


@each(
    ("first", "second"),
    [("a", "A"), ("Data/x", "data/y"), ("d/Data/x", "d/data/y/z"), ("straße", "STRASSE"),
     ("ſ", "s"), ("É", "é")],
)  # fmt: skip
def test_names_that_differ_only_in_case_are_reported(first, second):
    for paths in ([first, "b/c", second, "a.a"], [second, first]):
        (found,) = names.problems(paths)
        assert (found.code, "differs only in case" in found.why) == ("case_clash", True)


def test_a_warning_is_short_however_many_names_there_are():
    found = names.NonPortableNames()
    assert found.warnings() == ()
    for n in range(10_000):
        found.add(f"{n}:" * 200, "it contains a colon")
    (warning,) = found.warnings()
    assert "10000 names" in warning
    assert "and 9997 more" in warning
    assert len(warning) < 700


class Unread(str):
    """A name that nobody may go through."""

    __slots__ = ()

    def __iter__(self):
        raise AssertionError("somebody reads all of it")


LONG = [Unread(mark * 40_000) for mark in ("\u0301", "a", "a/", "\u0301a")]


@each(
    ("name", "why"),
    [*((name, "longer than 1024 bytes") for name in LONG), ("\u0301" * 1000, "marks in a row")],
)
def test_a_name_is_refused_before_it_is_composed(monkeypatch, name, why):
    """Composing takes time that grows with the square of a run of marks."""
    real = SimpleNamespace(category=unicodedata.category, combining=unicodedata.combining)
    monkeypatch.setattr(names, "unicodedata", real)
    with pytest.raises(UnsafeName, match=why) as caught:
        safe_path(name)
    assert len(str(caught.value)) < 10_000


# ---------------------------------------------------------------------------- patterns


@each(
    ("patterns", "chosen", "others"),
    [
        (["*.csv"], ["a.csv", "out/deep/b.csv"], ["a.csv.gz", "csv", "x/csv.txt"]),
        (["out/*.csv"], ["out/a.csv"], ["a.csv", "out/deep/b.csv", "x/out/a.csv"]),
        (["out/**/*.csv"], ["out/a.csv", "out/1/2/b.csv"], ["a.csv", "outer/a.csv"]),
        (["**/best.pdb"], ["best.pdb", "a/b/best.pdb"], ["best.pdb.gz"]),
        (["out"], ["out", "out/a", "x/out/b/c"], ["outer/a", "a/out.txt"]),
        (["out/"], ["out/a", "out/b/c"], ["outer/a"]),
        (["run/?/log[12]"], ["run/a/log1", "run/b/log2/x"], ["run/ab/log1", "run/a/log3"]),
        (["a/**"], ["a/b", "a/b/c", "a"], ["b/a"]),
        (["*"], ["a", "b/c"], []),
        (["é*"], ["éa"], ["ea"]),
        (["a", "b/*"], ["b/x", "a"], ["c"]),
        ([], [], ["a"]),
    ],
)
def test_a_pattern_chooses_files(patterns, chosen, others):
    globs = Globs([check_pattern(pattern) for pattern in patterns])
    assert [path for path in chosen if globs.matching(path) not in patterns] == []
    assert [path for path in others if globs.matching(path) is not None] == []


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
    globs = Globs([pattern])
    for path in (*PATHS, *reversed(PATHS)):
        assert globs.matching(path) == Globs([pattern]).matching(path), path


FILES = (
    *("run.sh", "a.o", "src/a.o", "src/a.c", "src/build/x", "build/y", "build/keep/z", "a b"),
    *("src/deep/er/a.o", "#x", "!y", "log1", "log10", "x-y", "data/in.txt", "src/data/in.txt"),
)
"""All are files."""
LISTS = [
    ["*.o"], ["/*.o"], ["src/*.o"], ["src/**/*.o"], ["**/data"], ["data/"], ["a.o/"], ["/build"],
    ["build/"], ["build/**"], ["src/build"], ["log?"], ["log[0-9]"], ["log[!2-9]"], ["x[-_]y"],
    ["*.o", "!src/a.o"], ["*", "!run.sh"], ["# comment", "", "   ", "a b"], ["\\#x", "\\!y"],
    ["src/", "!src/a.c"], ["in.txt   "], ["src/*/in.txt"], ["src/**/**/in.txt"], ["**"],
    ["**/b*d/**"], ["src/**/e*/**/a.o"], ["src/**/**"], ["*[*]*"],
]  # fmt: skip


def ignored(patterns: list[str]) -> set[str]:
    """The names that are left out, those in folders that are left out, too."""
    parsed = [one for text in patterns if (one := Pattern.parse(text, "here"))]
    ignore = Ignore(parsed, usual=False)

    def out(name: PurePosixPath) -> bool:
        in_one = any(ignore(str(one), Path(), True) for one in reversed(name.parents[:-1]))
        return in_one or ignore(str(name), Path(), False)

    return {name for name in FILES if out(PurePosixPath(name))}


def test_patterns_mean_what_they_mean_to_git(tmp_path):
    def git(*words: str) -> str:
        command = ["git", "-c", "core.excludesFile=", *words]
        return subprocess.check_output(command, cwd=tmp_path, text=True)

    git("init", "-q")
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    wrong = []
    for patterns in LISTS:
        (tmp_path / ".git/info/exclude").write_text("\n".join(patterns) + "\n")
        kept = git("ls-files", "-z", "--others", "--exclude-standard")
        if ignored(patterns) != set(FILES) - set(kept.split("\0")):
            wrong.append(patterns)
    assert wrong == []


def test_a_pattern_that_means_nothing_and_a_file_that_cannot_be_read_are_named(tmp_path):
    for text in ("/", "!"):
        with pytest.raises(BadArgument, match=r"^\.ferrymanignore, line 3: "):
            Pattern.parse(text, ".ferrymanignore, line 3")
    (tmp_path / ".ferrymanignore").write_bytes(b"\xff\n")
    with pytest.raises(BadBundle, match="no text in UTF-8"):
        ignore_for(tmp_path, (), everything=False)
    assert ignore_for(tmp_path, (), everything=True).left_out == []
