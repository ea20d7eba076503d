"""Which files of its bundle a result refers to, and which it holds, whatever the job did."""

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from unittest import mock

import pytest

from client_agent.collect.contents import Contents
from client_agent.collect.selection import Given, Selection
from shared.files.bundles.reader import BundleReader
from tests.agent.agent_packing import MIB, names, opened, pack, read, skipped
from tests.kit.each import each
from tests.kit.raw_archives import write_bundle

BUNDLE = {"run.sh": b"#!/bin/sh\n", "a/one": b"1111", "a/two": b"2222", "b/one": b"3333"}
RECEIPT = "ferryman.json"
LIST = "inputs.sha256"


class Job:
    """A bundle in the directory of an attempt that has begun."""

    def __init__(self, tree: Path, files: dict[str, bytes], *, late: bool = False) -> None:
        self.tree, self.files, self.given = tree, files, Given()
        write_bundle(tree.parent / "bundle", files)
        with opened(tree) as fd, BundleReader(tree.parent / "bundle") as reader:
            reader.unpack(fd, note=self.given.add)
            while not late and not self._is_later(fd):
                pass  # within a tick of the kernel's clock
        self.packed = 0

    def _is_later(self, fd: int) -> bool:
        self.given.begin(fd)
        newest = max((self.tree / path).stat().st_ctime_ns for path in self.files)
        return newest < os.fstat(fd).st_ctime_ns

    def pack(self, *outputs: str, results: int = 64 * MIB) -> Contents:
        self.packed += 1
        selection = Selection(outputs, self.given)
        name = f"result {self.packed}.zip"
        return pack(self.tree, selection=selection, results=results, name=name)


def listed(made: Contents) -> dict[str, str]:
    """Path -> digest, of the list; it is the last entry."""
    if not made.inputs:
        assert names(made)[-1] == made.names[RECEIPT]
        return {}
    assert names(made)[-1] == made.names[LIST]
    lines = [line.split("  ", 1) for line in read(made, names(made)[-1]).decode().splitlines()]
    assert len(lines) == made.inputs
    return {path: digest for digest, path in lines}


def own(made: Contents) -> set[str]:
    return set(names(made)) - {made.names[RECEIPT], made.names[LIST]}


def test_what_stays_as_it_was_sent_is_listed_with_its_digest_and_nothing_else_is(tree) -> None:
    job = Job(tree, BUNDLE)
    (tree / "new").write_bytes(b"new")
    made = job.pack()
    assert listed(made) == {path: sha256(text).hexdigest() for path, text in BUNDLE.items()}
    assert own(made) == {"new"}
    assert (made.files, made.bytes, made.inputs) == (1, 3, len(BUNDLE))
    shutil.rmtree(tree / "b")
    (tree / "a/one").unlink()
    assert [*listed(job.pack())] == ["a/two", "run.sh"], "in the order of the ZIP"


CHANGES: dict[str, tuple[str, set[str], set[str]]] = {
    "other bytes, as many": ("printf 9999 >a/one", {"a/one"}, {"a/one"}),
    "the same bytes again": ("printf 1111 >a/one", {"a/one"}, {"a/one"}),
    "times set back": (
        "touch -r a/one t; printf 9999 >a/one; touch -r t a/one; rm t",
        {"a/one"},
        {"a/one"},
    ),
    "mode": ("chmod +x a/one", {"a/one"}, {"a/one"}),
    "touched": ("touch a/one", {"a/one"}, {"a/one"}),
    "gone": ("rm a/one", {"a/one"}, set()),
    "renamed": ("mv a/one a/1", {"a/one"}, {"a/1"}),
    "over another": ("mv -f a/one a/two", {"a/one", "a/two"}, {"a/two"}),
    "exchanged": ("mv a/one t; mv b/one a/one; mv t b/one", {"a/one", "b/one"}, {"a/one", "b/one"}),
    "folders exchanged": (
        "mv a t; mv b a; mv t b",
        {"a/one", "a/two", "b/one"},
        {"a/one", "b/one", "b/two"},
    ),
    "a second name": ("ln a/one x", {"a/one"}, {"a/one", "x"}),
    "another's file by its name": ("ln -f b/one a/two", {"a/two", "b/one"}, {"a/two", "b/one"}),
    "a link in its place": ("mv a/one x; ln -s ../x a/one", {"a/one"}, {"x"}),
    "a FIFO in its place": ("rm a/one; mkfifo a/one", {"a/one"}, set()),
    "a link in the place of its folder": ("mv b c; ln -s c b", {"b/one"}, {"c/one"}),
    "a file in the place of its folder": ("rm -r b; : >b", {"b/one"}, {"b"}),
    "an empty folder": ("rm b/one", {"b/one"}, {"b/"}),
    "all is gone": ("rm -r a b run.sh", {*BUNDLE}, set()),
}


@each("late", [False, True])
@each("how", CHANGES)
def test_what_a_job_does_to_a_file_is_in_its_result(tmp_path, late, how) -> None:
    """Also where the file was written so late that the times may not show it."""
    folder = tmp_path / f"{how} {late}"
    (folder / "job").mkdir(parents=True)
    job = Job(folder / "job", BUNDLE, late=late)
    script, changed, expected = CHANGES[how]
    subprocess.run(["/bin/sh", "-ec", script], cwd=job.tree, check=True)
    if late and how == "other bytes, as many":  # and the kernel's clock stood still
        status = (job.tree / "a/one").stat()
        job.given.add("a/one", sha256(b"1111").hexdigest(), status)
        assert job.given.has("a/one", status) is None
    made = job.pack()
    assert ({*listed(made)}, own(made)) == (BUNDLE.keys() - changed, expected)
    for path in own(made) - {"b/"}:
        assert read(made, path) == (job.tree / path).read_bytes()


def test_a_mode_that_changes_within_a_tick_of_the_clock_is_noticed(tmp_path) -> None:
    path, given = tmp_path / "a", Given()
    path.write_text("x")
    before = path.stat()
    given.add("a", sha256(b"x").hexdigest(), before)
    path.chmod(0o700)
    found = list(path.stat())
    times = {name: getattr(before, name) for name in ("st_mtime_ns", "st_ctime_ns")}
    assert given.has("a", before) is None
    assert given.has("a", os.stat_result(found, times)) is False


def test_a_job_cannot_write_the_list(tree) -> None:
    job = Job(tree, BUNDLE)
    forged = f"{'0' * 64}  secret\n".encode()
    for path in (LIST, "Inputs.ferryman.SHA256", f"a/{LIST}", "~", "zz"):
        (tree / path).write_bytes(forged)
    made = job.pack()
    assert made.names[LIST] == "inputs.ferryman.2.sha256"
    assert listed(made).keys() == BUNDLE.keys()
    assert own(made) >= {LIST, "Inputs.ferryman.SHA256", f"a/{LIST}"}
    (tree / "a/one").unlink()
    shutil.rmtree(tree / "b")
    (tree / "a/two").unlink()
    (tree / "run.sh").unlink()
    made = job.pack()
    assert made.inputs == 0
    assert names(made)[-1] == made.names[RECEIPT], "and then there is none"


def test_a_bundle_may_have_a_file_of_its_name(tree) -> None:
    made = Job(tree, BUNDLE | {LIST: b"theirs", f"a/{LIST}": b"theirs"}).pack()
    assert made.names[LIST] == "inputs.ferryman.sha256"
    assert listed(made).keys() == BUNDLE.keys() | {LIST, f"a/{LIST}"}
    assert own(made) == set()


def test_outputs_choose_of_what_was_sent_too(tree) -> None:
    job = Job(tree, BUNDLE)
    (tree / "a/new").write_bytes(b"new")
    made = job.pack("a/*")
    assert ({*listed(made)}, own(made)) == ({"a/one", "a/two"}, {"a/new"})
    selection = Selection(("b", "nothing"), job.given)
    made = pack(tree, selection=selection, name="other.zip")
    assert ({*listed(made)}, own(made)) == ({"b/one"}, set())
    assert selection.warnings() == ("outputs: no file is chosen by “nothing”",)


def test_scripts_of_children_are_packed_as_they_are(tree) -> None:
    made = Job(tree, BUNDLE | {"children/x/run.sh": b"x"}).pack("a")
    assert ({*listed(made)}, own(made)) == ({"a/one", "a/two"}, {"children/x/run.sh"})
    assert made.children == 1


def test_what_was_sent_counts_for_no_limit_and_is_not_read(tree, monkeypatch) -> None:
    job = Job(tree, BUNDLE | {"large": bytes(2 * MIB)})
    with monkeypatch.context() as context:
        context.setattr("client_agent.storage.open_beneath.open_file", _refuse)
        made = job.pack(results=1)
    assert (made.inputs, made.bytes, made.files) == (len(BUNDLE) + 1, 0, 0)
    assert made.size < 4096


def _refuse(*_: object, **__: object) -> int:
    raise AssertionError("it need not be opened")


def test_a_name_that_clashes_with_one_that_was_sent_is_noticed_as_before(tree) -> None:
    job = Job(tree, BUNDLE | {"\u00e9t\u00e9": b"sent", "Case": b"sent"})
    (tree / "e\u0301t\u00e9").write_bytes(b"job")
    (tree / "case").write_bytes(b"job")
    made = job.pack()
    assert own(made) == {"\u00e9t\u00e9", "case"}
    assert read(made, "\u00e9t\u00e9") == b"job", "the first one by its bytes, as in a whole result"
    assert listed(made).keys() == {*BUNDLE, "Case"}
    assert len(skipped(made)) == 1
    (warning,) = made.not_portable.warnings()
    assert "“case”: it differs only in case from “Case”" in warning


def test_what_cannot_be_compared_is_listed_as_skipped(tree, monkeypatch) -> None:
    job = Job(tree, {"run.sh": b"x"}, late=True)
    monkeypatch.setattr(
        "client_agent.storage.open_beneath.open_file",
        mock.Mock(side_effect=OSError(5, "Input/output error")),
    )
    made = job.pack()
    assert (own(made), made.inputs) == (set(), 0)
    assert skipped(made) == {"run.sh": "Input/output error"}


def test_ten_thousand_files_are_listed_in_order(tree) -> None:
    files = {f"d{at % 100:02}/f{at:05}": b"%d" % at for at in range(9_999)} | {"run.sh": b""}
    job = Job(tree, files)
    (tree / "d00/f00000").write_bytes(b"new")
    made = job.pack()
    assert own(made) == {"d00/f00000"}
    assert [*listed(made)] == sorted(files.keys() - {"d00/f00000"})


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: there is no folder of somebody else's")
def test_where_the_time_cannot_be_asked_for_contents_are_compared(tree, monkeypatch) -> None:
    job = Job(tree, BUNDLE)
    monkeypatch.setattr(os, "utime", mock.Mock(side_effect=PermissionError))
    with opened(tree) as fd:
        job.given.begin(fd)
    assert job.given.has("run.sh", (tree / "run.sh").stat()) is None
    made = job.pack()
    assert listed(made).keys() == BUNDLE.keys()
