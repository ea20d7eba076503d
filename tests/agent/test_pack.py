"""What a result contains, and what it never contains. How hostile jobs fill a directory: their
bundles ``res-*`` in tests/hostile.
"""

import errno
import itertools
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent.collect import walk
from client_agent.collect.contents import MAX_LISTED, Contents, ResultsLimitExceeded
from client_agent.collect.pack import collect
from client_agent.collect.result import last_lines
from client_agent.collect.walk import Bounds
from client_agent.storage import open_beneath
from shared.wire import Limits
from tests.agent.agent_packing import MIB, names, opened, pack, read, skipped
from tests.kit.child import in_child
from tests.kit.cost import peak
from tests.kit.each import each


def test_what_is_no_file_is_left_out_and_listed_up_to_a_number(tree: Path) -> None:
    """Devices: no job can make one."""
    (tree / "sub").mkdir()
    (tree / "sub" / "up").symlink_to("..")
    expected = {"sub/up": "a symlink"}
    if os.geteuid() == 0:
        os.mknod(tree / "null", 0o20666, os.makedev(1, 3))
        os.mknod(tree / "disk", 0o60666, os.makedev(253, 99))
        expected |= {"null": "a device", "disk": "a device"}
    made = pack(tree)
    assert (names(made), skipped(made)) == (["sub/", "ferryman.json"], expected)
    for number in range(MAX_LISTED):
        (tree / f"l{number}").symlink_to("x")
    made = pack(tree, name="other.zip")
    assert (len(made.skipped), made.skipped_more) == (MAX_LISTED, len(expected))


@each(
    "what, bounds",
    [("entries", Bounds(entries=5)), ("depth", Bounds(depth=2)), ("path", Bounds(path_bytes=12))],
)
def test_the_shape_of_a_tree_is_limited(tree: Path, what: str, bounds: Bounds) -> None:
    (tree / "a" / "b" / "c").mkdir(parents=True, exist_ok=True)
    for name in ("1", "2", "long-long-name"):  # what is skipped counts, too
        (tree / name).unlink(missing_ok=True)
        (tree / name).symlink_to("x")
    with pytest.raises(ResultsLimitExceeded) as caught:
        pack(tree, bounds=bounds)
    assert caught.value.what == what
    assert str(caught.value).startswith("too much to collect: ")


# -- names, modes, times


def test_names_that_only_linux_can_store_are_kept_with_a_warning(tree: Path) -> None:
    (tree / "d").mkdir()
    for name in ("C:evil", "CON", "aux.h", "dot.", "space ", "...", "chr1:1-2.bed", "a?", "<b>"):
        (tree / "d" / name).write_text("kept")
        made = pack(tree, name=f"{name}.zip")
        assert read(made, f"d/{name}") == b"kept"
        (tree / "d" / name).unlink()
        assert made.skipped == []
        (warning,) = made.not_portable.warnings()
        assert warning.startswith(f"portable_names: 1 name is not for every system (“d/{name}”: ")


def test_names_that_differ_in_composition_are_stored_once(tree: Path) -> None:
    for name in ("Case", "case", "e\u0301", "\u00e9"):
        (tree / name).write_text(name)
    for name in ("Folder", "folder", "o\u0301", "\u00f3"):
        (tree / name).mkdir()
        (tree / name / "f").write_text(name)
    (tree / "o\u0301" / "e\u0301").symlink_to("x")
    made = pack(tree)
    kept = ["Case", "Folder/f", "case", "\u00e9", "folder/f", "\u00f3/f", "ferryman.json"]
    assert names(made) == kept
    assert len(made.skipped) == 3
    assert "o\u0301/e\u0301" in skipped(made), "by its own name"
    assert read(made, "\u00e9") == "e\u0301".encode()
    (warning,) = made.not_portable.warnings()
    assert "“case”: it differs only in case from “Case”; “folder”: it differs" in warning


def test_a_path_that_gets_too_long_by_composition_is_skipped(tree: Path) -> None:
    component = "\U0001d160" * 21  # 4 bytes each, 12 when composed
    deep = tree.joinpath(*[component] * 5)
    deep.parent.mkdir(parents=True)
    deep.write_text("x")
    made = pack(tree)
    assert all(len(name.encode()) <= 1024 for name in names(made))
    assert list(skipped(made).values()) == ["its path is longer than 1024 bytes"]


def test_modes_become_0644_or_0755_and_times_what_a_zip_can_hold(tree: Path) -> None:
    modes = {0o4755: 0o755, 0o600: 0o644, 0o777: 0o755, 0o100: 0o755}
    for mode in modes:
        (tree / f"{mode:o}").write_text("x")
        (tree / f"{mode:o}").chmod(mode)
    years = {0: 1980, -(10**9): 1980, 2**31 + 5: 2038, 1_700_000_000: 2023, 16 * 10**9: 2107}
    for at in (*years, 10**17, -(10**17)):
        (tree / f"at {at}").write_text("x")
        os.utime(tree / f"at {at}", (at, at))
    with zipfile.ZipFile(pack(tree).path) as archive:
        found = {info.filename: info for info in archive.infolist()}
    given = {mode: found[f"{mode:o}"].external_attr >> 16 for mode in modes}
    assert given == {mode: 0o100000 | wanted for mode, wanted in modes.items()}
    if (tree / f"at {10**17}").stat().st_mtime == 10**17:  # some file systems clamp, too
        years |= {10**17: 2107, -(10**17): 1980}
        assert {at: found[f"at {at}"].date_time[0] for at in years} == years


# -- the agent's files


def test_the_agents_files_are_beside_the_jobs_and_get_other_names(tree, tmp_path) -> None:
    (tmp_path / "out").write_text("out")
    for name in ("STDOUT.log", "stdout.ferryman.LOG", "ferryman.json"):
        (tree / name).write_text("theirs")
    (tree / "Stderr.Log").symlink_to("/etc/passwd")
    logs = {"stdout.log": tmp_path / "out", "stderr.log": b"err", "lost.log": tmp_path / "no"}
    made = pack(tree, logs)
    assert made.names == {
        "stdout.log": "stdout.ferryman.2.log",
        "stderr.log": "stderr.ferryman.log",
        "lost.log": "lost.log",
        "ferryman.json": "ferryman.ferryman.json",
        "inputs.sha256": "inputs.sha256",
    }
    jobs = ["STDOUT.log", "ferryman.json", "stdout.ferryman.LOG"]
    agents = ["stdout.ferryman.2.log", "stderr.ferryman.log", "ferryman.ferryman.json"]
    assert names(made) == [*jobs, *agents]
    assert [read(made, name) for name in jobs] == [b"theirs"] * 3
    assert [read(made, name) for name in agents] == [b"out", b"err", repr(made.names).encode()]
    assert skipped(made)["lost.log"] == "No such file or directory"


def test_the_receipt_is_written_last_and_one_that_fails_leaves_no_file(tree, tmp_path) -> None:
    (tree / "f").write_bytes(b"12345")
    (tree / "l").symlink_to("x")

    def receipt(contents: Contents) -> bytes:
        assert (contents.files, contents.bytes, len(contents.skipped)) == (1, 5, 1)
        raise ValueError("no receipt")

    with opened(tree) as fd, pytest.raises(ValueError, match="no receipt"):
        collect(fd, tmp_path / "r.zip", Limits(), {}, receipt)
    assert not (tmp_path / "r.zip").exists()


# -- while it is packed, it changes


def change_after_counting(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    real = walk.Walk.count

    def count(self: walk.Walk, most: int) -> walk.TreeCount:
        count = real(self, most)
        change()
        return count

    monkeypatch.setattr(walk.Walk, "count", count)


def test_a_link_put_in_place_of_a_folder_is_not_followed(tree, tmp_path, monkeypatch) -> None:
    """The change happens between stat and open, as a running job could do it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (tree / "d").mkdir()
    real = open_beneath.open_directory

    def swapped(parent: int, name: str, *, may_chmod: bool) -> int:
        (tree / "d").rmdir()
        (tree / "d").symlink_to(tmp_path / "secret")
        return real(parent, name)

    with opened(tree) as fd:
        monkeypatch.setattr(open_beneath, "open_directory", swapped)
        left: dict[str, str] = {}
        packed = list(walk.Walk(fd, Bounds()).entries(left.__setitem__))
    assert packed == []
    assert left == {"d": "Not a directory"}


GROWN = "the results limit was reached meanwhile"
TWICE = "another name here differs only in case or composition"
LATE = "it came while the rest was read, and exceeds a limit"


@each(
    "change, opened_first, kept, left",
    [
        (lambda f: f.write_bytes(b"1" * 1000 + b"2" * 5000), True, 1000, {}),
        (lambda f: os.truncate(f, 300), True, 300, {"f": "cut short: 700 bytes were gone"}),
        (lambda f: f.unlink(), False, None, {"f": "No such file or directory"}),
    ],
)
def test_a_file_that_changes_is_read_to_the_size_first_seen(
    tmp_path, monkeypatch, change, opened_first, kept, left
) -> None:
    tree = tmp_path / f"job-{kept}" / "job"
    tree.mkdir(parents=True)
    (tree / "f").write_bytes(b"1" * 1000)
    real = open_beneath.open_file

    def changing(parent: int, name: str, seen: os.stat_result, *, may_chmod: bool) -> int:
        fd = real(parent, name, seen) if opened_first else -1
        change(tree / "f")
        return fd if opened_first else real(parent, name, seen)

    with monkeypatch.context() as patch:
        patch.setattr(open_beneath, "open_file", changing)
        made = pack(tree)
    assert names(made) == ([] if kept is None else ["f"]) + ["ferryman.json"]
    assert kept is None or read(made, "f") == b"1" * kept
    assert skipped(made) == left


@each(
    "late, limits, packed, left",
    [
        ({"b": bytes(600)}, {"results": 1000}, ["a"], {"b": GROWN}),
        ({"STDOUT.log": b"theirs"}, {}, ["a", "stdout.log"], {"STDOUT.log": TWICE}),
        ({"x/y/z/f": b""}, {"bounds": Bounds(depth=3)}, ["a", "x/y/z/"], {"x/y/z/f": LATE}),
    ],
)
def test_what_is_made_after_the_count_exceeds_no_limit_and_takes_no_name(
    tmp_path, monkeypatch, late, limits, packed, left
) -> None:
    tree = tmp_path / packed[-1].replace("/", "-") / "job"
    tree.mkdir(parents=True)
    (tree / "a").write_bytes(bytes(600))

    def comes() -> None:
        for name, content in late.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(content)

    with monkeypatch.context() as patch:
        change_after_counting(patch, comes)
        made = pack(tree, {"stdout.log": b"log"} if "stdout.log" in packed else {}, **limits)
    assert names(made) == [*packed, "ferryman.json"]
    assert skipped(made) == left
    assert "stdout.log" not in packed or read(made, "stdout.log") == b"log"


def test_names_made_after_the_count_are_not_all_read(tree, monkeypatch) -> None:
    def flood() -> None:
        for i in range(100):
            (tree / f"late{i}").touch()

    change_after_counting(monkeypatch, flood)
    made = pack(tree, bounds=Bounds(entries=10))
    assert (made.files, list(skipped(made).values())) == (10, [LATE])


def test_a_file_that_the_disk_cannot_read_to_its_end_is_listed(tree, monkeypatch) -> None:
    (tree / "f").write_bytes(b"1" * MIB)
    real, calls = os.read, itertools.count()

    def failing(fd: int, length: int) -> bytes:
        if next(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, length)

    monkeypatch.setattr(os, "read", failing)
    made = pack(tree)
    monkeypatch.undo()
    assert read(made, "f") == b"1" * (MIB // 2)
    assert skipped(made) == {"f": "cut short: Input/output error"}


def test_memory_does_not_grow_with_the_size_of_a_file(tree: Path) -> None:
    def work(home: Path) -> int:
        (home / "job").mkdir()
        with (home / "job" / "f").open("wb") as file:
            file.truncate(192 * MIB)
        return peak(lambda: pack(home / "job", results=1 << 30))[1]

    assert in_child(work, "user") < 8 * MIB


def test_other_readers_of_the_directory_do_not_take_names_from_the_result(tree: Path) -> None:
    """Two descriptors that are copies share their place in the listing."""
    for i in range(3000):  # more than the kernel gives out at once
        (tree / f"a-rather-long-name-{i:05}").touch()
    with opened(tree) as fd, os.scandir(fd) as other:
        next(other)
        left: dict[str, str] = {}
        walked = walk.Walk(fd, Bounds())
        assert walked.count(MIB).entries == 3000
        next(other)
        assert len(list(walked.entries(left.__setitem__))) == 3000


LINES = [f"line {number}" for number in range(1000)]


@each(
    "log, shown",
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"cut " * 2_000 + b"\nno newline", "no newline"),
        (b"a\r\nb\r\n", "a\nb"),
        (b"over\rwrite", "over\\rwrite"),
        (b"\x1b[31mred\x1b[0m\a", "\\x1b[31mred\\x1b[0m\\x07"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("‮evil\u200b".encode(), "\\u202eevil\\u200b"),
        (b"\xff\xfe\x00", "��\\x00"),
        ("tab\tand µ".encode(), "tab\tand µ"),
        ("\n".join(LINES).encode(), "\n".join(LINES[-20:])),
    ],
)
def test_the_end_of_a_log_shows_nothing_that_acts_on_a_terminal(log: bytes, shown: str) -> None:
    assert last_lines(log) == shown
    for piece in (b"x", b"\x01", b"\xff"):
        assert 0 < len(last_lines(log + piece * 100_000)) <= 4096
