"""Names that Linux can store and other systems cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.bundles.reader import BundleReader
from shared.files.bundles.writer import BundleWriter
from shared.files.names import (
    BundleError,
    NonPortableNames,
    fold,
    problems,
    safe_path,
    why_not_portable,
)
from tests.kit.each import each

ODD = [
    ("C:x", "colon"),
    ("chr1:1000-2000.bed", "colon"),
    ("d/2024-01-01T12:00:00.nc", "colon"),
    *((f"a{sign}b", "the character") for sign in '<>"|?*'),
    ("CON", "device"),
    ("nul.txt", "device"),
    ("a/Com1.tar.gz", "device"),
    ("a/lpt9/b", "device"),
    ("com¹", "device"),
    ("aux .txt", "device"),
    ("aux.h", "device"),
    ("CONOUT$", "device"),
    ("a.", "dot or a space"),
    ("a /b", "dot or a space"),
    ("...", "dot or a space"),
]


@each(("name", "why"), ODD)
def test_what_other_systems_cannot_store_is_reported_with_the_reason(name, why):
    assert safe_path(name) == name
    reason = why_not_portable(name)
    assert reason is not None
    assert why in reason


@pytest.mark.parametrize(
    "name", ["con2", "console", "com10", "lpt", "a.b/c d", ".x", "..a", "auxiliary.h", "x-aux", "é"]
)
def test_ordinary_names_are_for_every_system(name):
    assert why_not_portable(name) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", "A"),
        ("Makefile", "makefile"),
        ("Data/x", "data/y"),
        ("d/Data/x", "d/data/y/z"),
        ("straße", "STRASSE"),
        ("ſ", "s"),
        ("É", "é"),
    ],
)
def test_names_that_differ_only_in_case_are_reported(first, second):
    for paths in ([first, "b/c", second, "a.a"], [second, first]):
        (found,) = problems(paths)
        assert (found.code, "differs only in case" in found.why) == ("case_clash", True)


@given(st.lists(st.lists(st.sampled_from("aAbBéÉ"), max_size=3, min_size=1).map("/".join)))
def test_a_clash_is_found_wherever_two_prefixes_differ_only_in_case(paths):
    paths = list(dict.fromkeys(paths))
    prefixes = {p[:i] for p in paths for i in range(1, len(p) + 1) if p[i : i + 1] in {"", "/"}}
    clash = any(fold(a) == fold(b) and a != b for a in prefixes for b in prefixes)
    assert bool(list(problems(paths))) == clash


def test_a_warning_is_short_however_many_names_there_are():
    names = NonPortableNames()
    assert names.warnings() == ()
    names.add("a:b", "it contains a colon")
    assert names.warnings() == (
        "portable_names: 1 name is not for every system (“a:b”: it contains a colon)",
    )
    for n in range(10_000):
        names.add(f"{n}:" * 200, "it contains a colon")
    (warning,) = names.warnings()
    assert "10001 names" in warning
    assert "and 9998 more" in warning
    assert len(warning) < 700


def write(path, names, *, portable):
    writer = BundleWriter(path, max_files=10, max_bytes=1000, portable=portable)
    try:
        for name in names:
            writer.add(name)
            writer.end()
        return writer.finish()
    except BundleError:
        writer.abort()
        raise


def test_a_bundle_keeps_such_names_and_says_so(tmp_path):
    names = ["run.sh", "chr1:1-2.bed", "aux.h", "Makefile", "makefile", "end."]
    sealed = write(tmp_path / "b", names, portable=False)
    (warning,) = sealed.warnings
    assert warning.startswith("portable_names: 4 names are not for every system (")
    with BundleReader(tmp_path / "b") as bundle:
        assert {entry.path for entry in bundle.entries} == set(names)
        assert bundle.summary() == sealed


@pytest.mark.parametrize(
    ("names", "code", "part"),
    [
        (["run.sh", "a:b"], "unsafe_name", "a:b"),
        (["run.sh", "Makefile", "makefile"], "case_clash", "makefile"),
    ],
)
def test_where_names_must_be_portable_they_are_refused(tmp_path, names, code, part):
    with pytest.raises(BundleError) as caught:
        write(tmp_path / "b", names, portable=True)
    assert (caught.value.code, caught.value.part) == (code, part)
    assert not (tmp_path / "b").exists()
