from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files import names
from shared.files.names import Tree, UnsafeName, find_root, safe_path, shown
from tests.unit.shared.files.building import component_names


@pytest.mark.parametrize(
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
    ],
)
def test_ordinary_names_are_taken_as_they_are(name):
    assert safe_path(name) == name


def test_names_are_composed_so_that_one_file_has_one_name():
    assert safe_path("e\u0301/o\u0308") == "\u00e9/\u00f6"


@pytest.mark.parametrize(
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
        ("C:x", "colon"),
        ("a:stream", "colon"),
        ("\ud800", "surrogate"),
        ("CON", "device"),
        ("nul.txt", "device"),
        ("a/Com1.tar.gz", "device"),
        ("com¹", "device"),
        ("aux .txt", "device"),
        ("CONOUT$", "device"),
        ("a.", "dot or a space"),
        ("a /b", "dot or a space"),
        ("...", "dot or a space"),
        ("x" * 256, "longer than 255"),
        ("é" * 128, "longer than 255"),
        ("/".join(["d" * 200] * 6), "longer than 1024"),
        ("/".join(["é" * 100] * 6), "longer than 1024"),
        ("/".join(["d"] * 65), "deeper than 64"),
    ],
)
def test_names_that_some_system_would_misread_are_refused_with_the_reason(name, why):
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


# ---------------------------------------------------------------------------- Tree


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("a", "a", "duplicate_name"),
        ("d/a", "d/a", "duplicate_name"),
        ("a", "A", "case_clash"),
        ("Data/x", "data/y", "case_clash"),
        ("straße", "STRASSE", "case_clash"),
        ("ſ", "s", "case_clash"),
        ("É", "é", "case_clash"),
        ("a", "a/b", "file_and_folder"),
        ("a/b", "a", "file_and_folder"),
        ("a/b/c", "a/b", "file_and_folder"),
        ("a/b", "a/b/c/d", "file_and_folder"),
    ],
)
def test_paths_that_cannot_lie_side_by_side_are_refused(first, second, code):
    tree = Tree()
    tree.add(first)
    with pytest.raises(UnsafeName) as caught:
        tree.add(second)
    assert caught.value.code == code
    assert caught.value.name == second


def test_a_folder_may_repeat_but_not_be_a_file():
    tree = Tree()
    tree.add_folder("a/b")
    tree.add_folder("a/b")
    tree.add_folder("a")
    tree.add("a/b/c")
    for path, as_folder in [("a/b", False), ("a/b/c", True), ("A", True)]:
        with pytest.raises(UnsafeName):
            (tree.add_folder if as_folder else tree.add)(path)


def test_a_refused_path_leaves_the_tree_as_it_was():
    tree = Tree()
    tree.add("a/b")
    with pytest.raises(UnsafeName):
        tree.add("a/b/new/x")
    tree.add("a/new")
    tree.add("a/c/new/x")


@given(st.lists(st.lists(st.sampled_from("aAbBé"), min_size=1, max_size=4).map("/".join)))
def test_a_tree_agrees_with_comparing_every_prefix_of_every_path(paths):
    tree = Tree()
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        above = {path[:i] for i, c in enumerate(path) if c == "/"}
        known = files | folders
        clash = any(
            one.casefold() == other.casefold() and one != other
            for one in above | {path}
            for other in known
        )
        fits = not (clash or path in known or above & files)
        if fits:
            tree.add(path)
            files.add(path)
            folders |= above
        else:
            with pytest.raises(UnsafeName):
                tree.add(path)


def test_adding_paths_looks_at_each_component_once(monkeypatch):
    folded = []
    real = names.fold

    def counting(component: str) -> str:
        folded.append(component)
        return real(component)

    monkeypatch.setattr(names, "fold", counting)
    tree = Tree()
    prefix = "/".join(f"d{i}" for i in range(30))
    for i in range(500):
        tree.add(f"{prefix}/{i}")
    assert len(folded) == 500 * 31


# ---------------------------------------------------------------------------- find_root


@pytest.mark.parametrize(
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
