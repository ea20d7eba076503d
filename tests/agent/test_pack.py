"""What a result contains, and what it never contains. How hostile jobs fill a directory: their
bundles ``res-*`` in tests/hostile.
"""

from __future__ import annotations

import hashlib
import os
import socket
import zipfile
from pathlib import Path

import pytest

from client_agent.collect.contents import MAX_LISTED, Contents, ResultsLimitExceeded
from client_agent.collect.pack import collect
from client_agent.collect.result import last_lines
from client_agent.collect.walk import Bounds
from client_agent.sandbox.kernel import mounts
from shared.wire import Limits
from tests.agent.agent_packing import MIB, names, open_descriptors, opened, pack, read, skipped
from tests.kit.each import each
from tests.kit.real_sandbox import can, in_child


def test_the_result_contains_the_files_of_the_job(tree: Path) -> None:
    big = os.urandom(3 * MIB) + bytes(5 * MIB)
    (tree / "data" / "deep").mkdir(parents=True)
    (tree / "data" / "deep" / "big.bin").write_bytes(big)
    (tree / "none").write_bytes(b"")
    (tree / "empty").mkdir()
    made = pack(tree)
    assert names(made) == ["data/deep/big.bin", "empty/", "none", "ferryman.json"]
    assert read(made, "data/deep/big.bin") == big
    assert (made.files, made.bytes, made.skipped) == (2, len(big), [])
    data = made.path.read_bytes()
    assert (made.size, made.sha256) == (len(data), hashlib.sha256(data).hexdigest())


# -- kinds of things


def test_only_files_and_folders_are_packed_and_nothing_else_blocks(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (tree / "sub").mkdir()
    for name, to in (("a", tmp_path / "secret" / "key"), ("d", tmp_path / "secret")):
        (tree / name).symlink_to(to)
    (tree / "sub" / "up").symlink_to("..")
    os.mkfifo(tree / "fifo")
    monkeypatch.chdir(tree)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
    expected = dict.fromkeys(("a", "d", "sub/up"), "a symlink")
    expected |= {"fifo": "a FIFO", "sock": "a socket"}
    if os.geteuid() == 0:
        os.mknod(tree / "null", 0o20666, os.makedev(1, 3))
        os.mknod(tree / "disk", 0o60666, os.makedev(253, 99))
        expected |= {"null": "a device", "disk": "a device"}
    made = pack(tree)
    assert names(made) == ["sub/", "ferryman.json"]
    assert skipped(made) == expected


def test_a_mount_below_the_directory_is_not_entered() -> None:
    if not can("root"):
        pytest.skip("not root: that mounts are not entered is not proved")

    def work(home: Path) -> tuple[list[str], dict[str, str]]:
        mounts.enter_private_namespace(home)  # a tmpfs lies on home now
        (home / "job" / "mnt").mkdir(parents=True)
        mounts.mount("none", home / "job" / "mnt", "tmpfs")
        (home / "job" / "mnt" / "other").write_text("other")
        made = pack(home / "job")
        return names(made), skipped(made)

    packed, left = in_child(work, "root")
    assert (packed, list(left)) == (["ferryman.json"], ["mnt"])


# -- limits


def test_hard_links_and_sparse_files_count_in_full_and_are_not_read(tree: Path) -> None:
    (tree / "base").write_bytes(bytes(MIB))
    for i in range(9):
        os.link(tree / "base", tree / f"l{i}")
    with pytest.raises(ResultsLimitExceeded) as caught:
        pack(tree, results=5 * MIB)
    said = (caught.value.what, caught.value.limit, caught.value.actual)
    assert said == ("bytes", 5 * MIB, 6 * MIB)
    assert pack(tree, results=10 * MIB).bytes == 10 * MIB
    with (tree / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ResultsLimitExceeded) as caught:
        pack(tree, name="other.zip")
    assert caught.value.actual == 1 << 40
    assert not (tree.parent / "other.zip").exists()


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


def test_the_list_of_skipped_files_is_limited(tree: Path) -> None:
    for i in range(MAX_LISTED + 50):
        (tree / f"l{i}").symlink_to("x")
    made = pack(tree)
    assert (len(made.skipped), made.skipped_more) == (MAX_LISTED, 50)


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


def test_the_agents_files_are_beside_the_jobs_and_get_other_names_than_these(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("out")
    for name in ("STDOUT.log", "stdout.ferryman.LOG", "ferryman.json"):
        (tree / name).write_text("theirs")
    (tree / "Stderr.Log").symlink_to("/etc/passwd")
    made = pack(
        tree,
        {"stdout.log": tmp_path / "out", "stderr.log": b"err", "lost.log": tmp_path / "missing"},
    )
    assert made.names == {
        "stdout.log": "stdout.ferryman.2.log",
        "stderr.log": "stderr.ferryman.log",
        "lost.log": "lost.log",
        "ferryman.json": "ferryman.ferryman.json",
    }
    jobs = ["STDOUT.log", "ferryman.json", "stdout.ferryman.LOG"]
    agents = ["stdout.ferryman.2.log", "stderr.ferryman.log", "ferryman.ferryman.json"]
    assert names(made) == [*jobs, *agents]
    assert [read(made, name) for name in jobs] == [b"theirs"] * 3
    assert [read(made, name) for name in agents] == [b"out", b"err", repr(made.names).encode()]
    assert skipped(made)["lost.log"] == "No such file or directory"


def test_the_receipt_is_written_last_and_one_that_fails_leaves_no_file(
    tree: Path, tmp_path: Path
) -> None:
    (tree / "f").write_bytes(b"12345")
    (tree / "l").symlink_to("x")

    def receipt(contents: Contents) -> bytes:
        assert (contents.files, contents.bytes, len(contents.skipped)) == (1, 5, 1)
        raise ValueError("no receipt")

    with opened(tree) as fd, pytest.raises(ValueError, match="no receipt"):
        collect(fd, tmp_path / "r.zip", Limits(), {}, receipt)
    assert not (tmp_path / "r.zip").exists()


def test_no_descriptor_is_left_open(tree: Path) -> None:
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "f").write_bytes(bytes(100))
    before = open_descriptors()
    pack(tree)
    with pytest.raises(ResultsLimitExceeded):
        pack(tree, results=10, name="other.zip")
    with pytest.raises(ResultsLimitExceeded):
        pack(tree, bounds=Bounds(depth=1), name="third.zip")
    assert open_descriptors() == before


# -- the end of a log


LINES = [f"line {number}" for number in range(1000)]


@each(
    "log, shown",
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"no newline", "no newline"),
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
