from __future__ import annotations

import os
import sys
import tracemalloc
import unicodedata
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files import names
from shared.files.names import PathSet, UnsafeName, find_root, problems, safe_path, shown
from tests.kit.each import each
from tests.kit.raw_archives import component_names


@each(
    "name",
    [
        "run.sh",
        "data/in.pdb",
        ".hidden/.x",
        "a b/c d",
        "漢字/é.txt",
        "-rf",
        "~",
        "con2",
        "console",
        "com10",
        "lpt",
        "..a",
        "a..b",
        "x" * 255,
        "/".join(["d"] * 64),
        "what?*<>|\"'",
        "é" * 127,
        "(1) [2] {3} @#$%^&=+;,!",
        "🚀",
        "chr1:1000-2000.bed",
        "2024-01-01T12:00:00.nc",
        "aux.h",
        "a.",
        "a /b",
        "...",
        "x" + "\u0334" * 30,
    ],
)
def test_ordinary_names_are_taken_as_they_are(name):
    assert safe_path(name) == name


def test_names_are_composed_so_that_one_file_has_one_name():
    assert safe_path("e\u0301/o\u0308") == "\u00e9/\u00f6"


@each(
    ("name", "why"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("//x", "absolute"),
        ("..", "'..'"),
        ("../x", "'..'"),
        ("a/../b", "'..'"),
        ("a/..", "'..'"),
        (".", "'.'"),
        ("./a", "'.'"),
        ("a/./b", "'.'"),
        ("a//b", "empty component"),
        ("a/", "empty component"),
        ("a\0b", "NUL"),
        ("a\nb", "control character (U+000A)"),
        ("a\x1b[2J", "control"),
        ("a\x7f", "control"),
        ("a\u0085b", "control"),
        ("a\u202eb", "format character (U+202E)"),
        ("a\u200bb", "format"),
        ("\ufeffa", "format"),
        ("a\u2028b", "line separator"),
        ("a\\b", "backslash"),
        ("\ud800", "surrogate"),
        ("e" + "\u0301" * 31, "more than 30 combining marks"),
        ("x" * 256, "longer than 255"),
        ("é" * 128, "longer than 255"),
        ("/".join(["d" * 200] * 6), "longer than 1024"),
        ("/".join(["é" * 100] * 6), "longer than 1024"),
        ("/".join(["d"] * 65), "deeper than 64"),
    ],
)
def test_names_that_are_dangerous_or_impossible_are_refused_with_the_reason(name, why):
    with pytest.raises(UnsafeName) as caught:
        safe_path(name)
    assert why in caught.value.why
    assert caught.value.name == name


@given(st.text(max_size=40) | st.lists(component_names, max_size=6).map("/".join))
def test_what_is_taken_stays_below_its_root_and_is_stable(name):
    try:
        path = safe_path(name)
    except UnsafeName as problem:
        str(problem).encode()  # can be shown
        return
    assert path == unicodedata.normalize("NFC", name)
    assert safe_path(path) == path
    assert os.path.normpath(f"/root/{path}") == f"/root/{path}"
    assert path.encode().decode() == path


def test_what_is_shown_of_a_name_cannot_play_with_the_terminal():
    assert shown("a\x1b[2J\u202e\ud800\\") == r"“a\x1b[2J\u202e\ud800\\”"
    assert len(shown("x" * 10_000)) < 150


# ---------------------------------------------------------------------------- PathSet


def add(tree, *paths):
    for path in paths:
        tree.add(path)
    tree.check()


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("a", "a", "duplicate_name"),
        ("d/a", "d/a", "duplicate_name"),
        ("a", "a/b", "file_and_folder"),
        ("a/b", "a", "file_and_folder"),
        ("a/b/c", "a/b", "file_and_folder"),
        ("a/b", "a/b/c/d", "file_and_folder"),
        ("a/b/c/d", "a/b", "file_and_folder"),
    ],
)
def test_paths_that_cannot_lie_side_by_side_are_refused(first, second, code):
    tree = PathSet()
    for between in ("a.b", "a-", "a!/b", "A", "a/b!", "a/b\x01"):  # what sorts between them
        tree.add(f"{between}/x")
    tree.add(first)
    with pytest.raises(UnsafeName) as caught:
        add(tree, second)
    assert caught.value.code == code
    assert caught.value.name == second


@pytest.mark.parametrize(
    ("path", "as_folder"), [("a/b", False), ("a/b/c", True), ("a", False), ("a/b/c/d", True)]
)
def test_a_folder_may_repeat_but_not_be_a_file(path, as_folder):
    tree = PathSet()
    tree.add_folder("a/b")
    tree.add_folder("a/b")
    tree.add_folder("a")
    tree.add("a/b/c")
    tree.add("A")
    tree.check()
    (tree.add_folder if as_folder else tree.add)(path)
    with pytest.raises(UnsafeName) as caught:
        tree.check()
    assert caught.value.code == "file_and_folder"


@given(st.lists(st.lists(st.sampled_from("aA.é!"), min_size=1, max_size=4).map("/".join)))
def test_a_tree_agrees_with_comparing_every_prefix_of_every_path(paths):
    tree = PathSet()
    above = {path[:i] for path in paths for i, c in enumerate(path) if c == "/"}
    if len(set(paths)) == len(paths) and not above & set(paths):
        add(tree, *paths)
    else:
        with pytest.raises(UnsafeName):
            add(tree, *paths)


def test_a_tree_holds_the_paths_and_nothing_of_their_folders():
    paths = ["/".join([f"{n:04}", *["d"] * 62, "f"]) for n in range(2000)]
    tree = PathSet()
    tracemalloc.start()
    try:
        for path in paths:
            tree.add(path)
        held = tracemalloc.get_traced_memory()[0]
        tree.check()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 200 * len(paths)  # a dict's slot; each folder of its own would be 64 of them
    assert most < 800 * len(paths)


# ---------------------------------------------------------------------------- work


class Read(str):
    """A name that counts how often somebody goes through its characters."""

    __slots__ = ()
    times = 0

    def __iter__(self):
        Read.times += 1
        return super().__iter__()


@pytest.fixture
def _never_composed(monkeypatch):
    """Composing takes time that grows with the square of a run of marks."""
    real = SimpleNamespace(category=unicodedata.category, combining=unicodedata.combining)
    monkeypatch.setattr(names, "unicodedata", real)


@pytest.mark.usefixtures("_never_composed")
@pytest.mark.parametrize("mark", ["\u0301", "a", "a/", "\u0301a"])
def test_a_name_that_is_too_long_is_refused_unread(mark):
    Read.times = 0
    with pytest.raises(UnsafeName, match="longer than 1024 bytes") as caught:
        safe_path(Read(mark * 40_000))
    assert Read.times == 0
    assert len(str(caught.value)) < 1000


@pytest.mark.usefixtures("_never_composed")
def test_combining_marks_are_counted_before_they_are_composed():
    with pytest.raises(UnsafeName, match="combining marks in a row"):
        safe_path("\u0301" * 1000)


# ---------------------------------------------------------------------------- find_root


@each(
    ("paths", "root"),
    [
        (["run.sh"], ""),
        (["a/x", "run.sh"], ""),
        (["top/run.sh"], "top/"),
        (["top/run.sh", "top/data/x"], "top/"),
        (["top/data/x", "top/run.sh"], "top/"),
        ([], None),
        (["x"], None),
        (["Run.sh"], None),
        (["top/run.sh", "other"], None),
        (["top/run.sh", "top2/x"], None),
        (["top/sub/run.sh"], None),
        (["run.sh/x"], None),
        (["top/run.sh/x"], None),
        (["run.sh", "top/run.sh"], ""),
    ],
)
def test_the_root_is_where_run_sh_lies_or_the_one_folder_that_holds_it(paths, root):
    assert find_root(paths) == root
    assert find_root(reversed(paths)) == root


# ---------------------------------------------------------------------------- work of many names


def calls(work) -> int:
    """Calls of functions, Python's and C's, that ``work`` makes."""
    count = 0

    def profile(*_) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


SHAPES = {
    "side by side": lambda n: [f"f{i:06}" for i in range(n)],
    "deep, each below a folder of its own": lambda n: [
        "/".join([f"{i:06}", *["d"] * 62, "f"]) for i in range(n)
    ],
    "deep, all below one": lambda n: ["/".join([*["d"] * 63, f"{i:06}"]) for i in range(n)],
    "each in two cases": lambda n: [f"{c}{i:06}" for i in range(n // 2) for c in "aA"],
    "odd in every way": lambda n: [f"aux:{i}. " for i in range(n)],
    "not ASCII": lambda n: [f"\u00e9\u0301{i:06}" for i in range(n)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_names_are_twice_the_work(shape):
    def check(paths: list[str]) -> None:
        tree = PathSet()
        for path in paths:
            tree.add(safe_path(path))
        tree.check()
        list(problems(paths))
        find_root(paths)

    few, many = (calls(lambda n=n: check(SHAPES[shape](n))) for n in (300, 600))
    assert many <= 2.1 * few
