"""What a result contains, and what it never contains."""

from __future__ import annotations

import hashlib
import os
import socket
import zipfile
from pathlib import Path

import pytest

from client_agent.collect.contents import MAX_LISTED, Contents, ResultsLimitExceeded, own_names
from client_agent.collect.pack import _zip_time, collect, collect_extras
from client_agent.collect.result import last_lines
from client_agent.collect.walk import Bounds
from client_agent.sandbox.kernel import mounts
from client_agent.storage.remove_tree import remove_tree
from shared.wire import Limits
from tests.agent.agent_packing import MIB, names, open_descriptors, opened, pack, read, skipped
from tests.kit.each import each
from tests.kit.real_sandbox import Who, can, in_child


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    return made


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


def test_size_and_digest_are_those_of_the_file(tree: Path) -> None:
    (tree / "f").write_bytes(os.urandom(700_000))
    made = pack(tree)
    data = made.path.read_bytes()
    assert (made.size, made.sha256) == (len(data), hashlib.sha256(data).hexdigest())


# ---------------------------------------------------------------- kinds of things


def test_symlinks_are_skipped_listed_and_never_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (tree / "a").symlink_to(tmp_path / "secret" / "key")
    (tree / "d").symlink_to(tmp_path / "secret")
    (tree / "sub").mkdir()
    (tree / "sub" / "up").symlink_to("..")
    made = pack(tree)
    assert names(made) == ["sub/", "ferryman.json"]
    assert skipped(made) == {"a": "a symlink", "d": "a symlink", "sub/up": "a symlink"}


def test_fifos_sockets_and_devices_are_skipped_and_do_not_block(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    here = Path.cwd()
    os.chdir(tree)  # the path of a socket must be short
    try:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("sock")
        listening.close()
    finally:
        os.chdir(here)
    expected = {"fifo": "a FIFO", "sock": "a socket"}
    if os.geteuid() == 0:
        os.mknod(tree / "null", 0o20666, os.makedev(1, 3))
        os.mknod(tree / "disk", 0o60666, os.makedev(253, 99))
        expected |= {"null": "a device", "disk": "a device"}
    made = pack(tree)
    assert names(made) == ["ferryman.json"]
    assert skipped(made) == expected


def test_a_mount_below_the_directory_is_not_entered() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: that mounts are not entered is not proved")

    def work(home: Path) -> tuple[list[str], dict[str, str]]:
        tree = home / "job"
        (tree / "mnt").mkdir(parents=True)
        mounts.enter_private_namespace(home)
        (home / "job" / "mnt").mkdir(parents=True)  # a tmpfs lies on home now
        mounts.mount("none", home / "job" / "mnt", "tmpfs")
        (home / "job" / "mnt" / "other").write_text("other")
        made = pack(home / "job")
        return names(made), skipped(made)

    packed, left = in_child(work, "root")
    assert packed == ["ferryman.json"]
    assert list(left) == ["mnt"]


def test_hard_links_count_in_full_for_each_name(tree: Path) -> None:
    (tree / "base").write_bytes(bytes(MIB))
    for i in range(9):
        os.link(tree / "base", tree / f"l{i}")
    with pytest.raises(ResultsLimitExceeded) as caught:
        pack(tree, results=5 * MIB)
    assert (caught.value.what, caught.value.limit, caught.value.actual) == (
        "bytes",
        5 * MIB,
        6 * MIB,
    )
    assert pack(tree, results=10 * MIB).bytes == 10 * MIB


# ---------------------------------------------------------------- limits


def test_a_sparse_file_counts_by_its_apparent_size_and_is_not_read(tree: Path) -> None:
    with (tree / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ResultsLimitExceeded) as caught:
        pack(tree)
    assert caught.value.actual == 1 << 40
    assert not (tree.parent / "result.zip").exists()


@each(
    ("what", "bounds"),
    [("entries", Bounds(entries=5)), ("depth", Bounds(depth=2)), ("path", Bounds(path_bytes=12))],
)
def test_the_shape_of_a_tree_is_limited(tree: Path, what: str, bounds: Bounds) -> None:
    (tree / "a" / "b" / "c").mkdir(parents=True, exist_ok=True)
    for name in ("1", "2", "long-long-name"):
        (tree / name).write_text("")
    with pytest.raises(ResultsLimitExceeded) as caught:
        pack(tree, bounds=bounds)
    assert caught.value.what == what
    assert str(caught.value).startswith("too much to collect: ")


def test_special_files_count_as_entries(tree: Path) -> None:
    for i in range(6):
        (tree / f"l{i}").symlink_to("x")
    with pytest.raises(ResultsLimitExceeded):
        pack(tree, bounds=Bounds(entries=5))


def test_five_thousand_nested_folders_hit_the_depth_limit(tree: Path) -> None:
    parent = os.open(tree, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=parent)
        below = os.open("d", os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = below
    os.close(parent)
    try:
        with pytest.raises(ResultsLimitExceeded) as caught:
            pack(tree)
        assert caught.value.what == "depth"
    finally:
        remove_tree(tree)  # pytest could not


def test_too_much_still_leaves_logs_and_receipt(tree: Path, tmp_path: Path) -> None:
    made = collect_extras(tmp_path / "r.zip", {"stdout.log": b"out"}, lambda contents: b"receipt")
    assert names(made) == ["stdout.log", "ferryman.json"]
    assert (read(made, "stdout.log"), read(made, "ferryman.json")) == (b"out", b"receipt")
    assert made.files == 0


# ---------------------------------------------------------------- names, modes, times


def test_odd_names_are_skipped_and_listed_escaped_and_folders_with_what_is_in_them(
    tree: Path,
) -> None:
    odd = [b"new\nline", b"\xff\xfe-bad", b"tab\tname", b"esc\x1b[31m", b"..\\..\\win"]
    odd += ["\u202egpj.exe".encode(), b"nul\xc0\x80", b"\xed\xa0\x80"]
    with opened(tree) as fd:
        os.mkdir(b"d\xff", dir_fd=fd)
        for name in (*odd, b"d\xff/f"):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    made = pack(tree)
    assert names(made) == ["ferryman.json"]
    assert len(skipped(made)) == len(odd) + 1
    assert all(path.isprintable() for path in skipped(made))


def test_names_that_only_linux_can_store_are_kept_with_a_warning(tree: Path) -> None:
    (tree / "d").mkdir()
    odd = ["C:evil", "CON", "aux.h", "dot.", "space ", "...", "chr1:1-2.bed", "a?", "<b>"]
    for name in odd:
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
    made = pack(tree)
    assert names(made) == [
        "Case",
        "Folder/f",
        "case",
        "\u00e9",
        "folder/f",
        "\u00f3/f",
        "ferryman.json",
    ]
    assert len(made.skipped) == 2
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


def test_skipped_files_are_listed_by_their_own_names(tree: Path) -> None:
    (tree / "e\u0301").mkdir()
    (tree / "e\u0301" / "e\u0301").symlink_to("x")
    assert list(skipped(pack(tree))) == ["e\u0301/e\u0301"]


def test_modes_become_0644_or_0755(tree: Path) -> None:
    for mode in (0o4755, 0o600, 0o777, 0o100):
        (tree / f"{mode:o}").write_text("x")
        (tree / f"{mode:o}").chmod(mode)
    with zipfile.ZipFile(pack(tree).path) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes == {
        "4755": 0o100755,
        "600": 0o100644,
        "777": 0o100755,
        "100": 0o100755,
        "ferryman.json": 0o100644,
    }


def test_times_that_a_zip_cannot_hold_are_clamped(tree: Path) -> None:
    when = {
        "epoch": 0,
        "neg": -(10**9),
        "far": 16 * 10**9,
        "y2038": 2**31 + 5,
        "now": 1_700_000_000,
    }
    for name, at in when.items():
        (tree / name).write_text("x")
        os.utime(tree / name, (at, at))
    with zipfile.ZipFile(pack(tree).path) as archive:
        years = {info.filename: info.date_time[0] for info in archive.infolist()}
    real = (tree / "far").stat().st_mtime  # file systems clamp, too
    assert years["epoch"] == years["neg"] == 1980
    assert years["far"] == (2107 if real > 2**32 + 2**31 else years["far"])
    assert (years["y2038"], years["now"]) == (2038, 2023)


@each("at", [-1e18, 1e18, 16e9, -16e9, float(2**63)])
def test_any_modification_time_can_be_written(at: float) -> None:
    assert 1980 <= _zip_time(at).year <= 2107


@pytest.mark.parametrize("who", ["root", "user"])
def test_files_that_their_owner_cannot_read_are_collected(who: Who) -> None:
    if not can(who):
        pytest.skip("not root: what a root agent can read is not proved")

    def work(home: Path) -> list[str]:
        folder = home / "job" / "a" / "b"
        folder.mkdir(parents=True)
        (folder / "f").write_text("x")
        (home / "job" / "g").write_text("y")
        for path in (folder / "f", folder, folder.parent, home / "job" / "g"):
            path.chmod(0)
        return names(pack(home / "job"))

    assert in_child(work, who) == ["a/b/f", "g", "ferryman.json"]


def test_the_list_of_skipped_files_is_limited(tree: Path) -> None:
    for i in range(MAX_LISTED + 50):
        (tree / f"l{i}").symlink_to("x")
    made = pack(tree)
    assert (len(made.skipped), made.skipped_more) == (MAX_LISTED, 50)


# ---------------------------------------------------------------- the agent's files


def test_the_agents_files_are_beside_the_jobs(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("out")
    (tree / "f").write_text("x")
    made = pack(tree, {"stdout.log": tmp_path / "out", "stderr.log": b"err"})
    assert names(made) == ["f", "stdout.log", "stderr.log", "ferryman.json"]
    assert (read(made, "stdout.log"), read(made, "stderr.log")) == (b"out", b"err")


def test_the_jobs_files_keep_their_names_and_the_agents_get_others(tree: Path) -> None:
    for name in ("STDOUT.log", "stdout.ferryman.LOG", "ferryman.json", "Stderr.Log"):
        (tree / name).write_text("theirs")
    made = pack(tree, {"stdout.log": b"out", "stderr.log": b"err"})
    assert made.names == {
        "stdout.log": "stdout.ferryman.2.log",
        "stderr.log": "stderr.ferryman.log",
        "ferryman.json": "ferryman.ferryman.json",
    }
    assert read(made, "STDOUT.log") == b"theirs"
    assert read(made, "stdout.ferryman.2.log") == b"out"
    assert read(made, "ferryman.ferryman.json") == repr(made.names).encode()


def test_the_agents_files_do_not_get_the_names_of_skipped_files(tree: Path) -> None:
    (tree / "stdout.log").symlink_to("/etc/passwd")
    made = pack(tree, {"stdout.log": b"out"})
    assert made.names["stdout.log"] == "stdout.ferryman.log"


def test_own_names_count_up() -> None:
    taken = {"a.log", "a.ferryman.log", "a.ferryman.2.log", "a.ferryman.3.log"}
    assert own_names(["a.log"], taken) == {"a.log": "a.ferryman.4.log"}


def test_a_log_that_is_missing_is_listed(tree: Path, tmp_path: Path) -> None:
    made = pack(tree, {"stdout.log": tmp_path / "missing"})
    assert names(made) == ["ferryman.json"]
    assert skipped(made) == {"stdout.log": "No such file or directory"}


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


def test_an_existing_file_is_not_overwritten(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "result.zip").write_text("kept")
    with pytest.raises(FileExistsError):
        pack(tree)
    assert (tmp_path / "result.zip").read_text() == "kept"


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


# ---------------------------------------------------------------- the end of a log


@each(
    ("log", "shown"),
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
    ],
)
def test_the_end_of_a_log_shows_nothing_that_acts_on_a_terminal(log: bytes, shown: str) -> None:
    assert last_lines(log) == shown


def test_the_end_of_a_log_is_its_last_lines_whole() -> None:
    lines = [f"line {number}" for number in range(1000)]
    assert last_lines("\n".join(lines).encode()).split("\n") == lines[-20:]


@each("log", [b"x" * 100_000, b"\x01" * 100_000, b"\xff" * 100_000])
def test_the_end_of_a_log_is_short_whatever_it_holds(log: bytes) -> None:
    assert 0 < len(last_lines(log)) <= 4096
