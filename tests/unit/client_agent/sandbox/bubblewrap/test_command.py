"""The command lines, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap import command
from client_agent.sandbox.bubblewrap.root_tree import RootTree
from client_agent.sandbox.process.chain import JOIN

FDS = command.Descriptors(args=10, job=11, status=12, seccomp=16)
TREE = RootTree(Path("/tree"), ("/usr",), mounted=True, signature=())
TOOLS = command.Tools(sh="/bin/sh", bwrap="/b/bwrap", unshare="/b/unshare")


def bwrap(**more: object) -> list[str]:
    given: dict[str, object] = {
        "env": {"A": "1"},
        "root": TREE,
        "scratch": 1000,
        **more,
    }
    return command.bwrap_options(FDS, **given)  # type: ignore[arg-type]


def test_a_root_agent_changes_its_uid_before_bwrap_starts() -> None:
    chain = command.chain(TOOLS, 10, ["x"], uid=70_003)
    assert chain[:5] == ["/bin/sh", "-c", JOIN, "join", "--"]
    assert chain[5:10] == ["/b/unshare", "--setuid=70003", "--setgid=70003", "--", "/b/bwrap"]


def test_bwrap_never_runs_as_root() -> None:
    with pytest.raises(ValueError, match="never run as the host's root"):
        command.chain(TOOLS, 10, ["x"], uid=0)


def test_cgroups_are_joined_before_the_uid_changes() -> None:
    chain = command.chain(TOOLS, 10, ["x"], uid=7, join=["/a", "/b"])
    assert chain[:7] == ["/bin/sh", "-c", JOIN, "join", "/a", "/b", "--"]
    assert chain.index("/b/unshare") == 7


def test_options_travel_by_descriptor_and_not_on_the_command_line() -> None:
    chain = command.chain(TOOLS, 10, ["x"], uid=None)
    assert chain[4:] == ["--", "/b/bwrap", "--args", "10", "--", "x"]
    assert command.encode_args(["--bind", "/a b", "\udcff"]) == b"--bind\0/a b\0\xff\0"


def test_the_jobs_directory_is_the_last_mount_and_nothing_lies_below_it() -> None:
    args = bwrap(read_only=[(Path("/opt/tools"), "/opt/tools")])
    at = args.index("--bind-fd")
    assert args[at : at + 3] == ["--bind-fd", "11", "/job"]
    mounting = {"--ro-bind", "--ro-bind-try", "--bind", "--tmpfs", "--file", "--dir", "--symlink"}
    mounting |= {"--proc", "--dev", "--ro-bind-data", "--bind-data", "--mqueue", "--dev-bind"}
    assert not mounting & set(args[at + 3 :])
    assert not [arg for arg in args if arg.startswith("/job/")]


def test_root_and_dev_are_made_read_only_after_the_last_mount() -> None:
    for read_only in ([], [(Path("/src"), "/data")]):
        args = bwrap(read_only=read_only)
        at = args.index("--bind-fd")
        places = ["/proc/fs", "/proc/1", "/dev", *(["/"] if read_only else [])]
        remounts = [word for place in places for word in ("--remount-ro", place)]
        assert args[at + 3 : at + 3 + len(remounts)] == remounts


def test_the_prepared_tree_is_mounted_read_only_before_anything_else() -> None:
    args = bwrap()
    first = args.index("--ro-bind")
    assert args[first : first + 4] == ["--ro-bind", "/tree", "/", "--proc"]
    unmounted = replace(TREE, mounted=False)
    args = bwrap(root=unmounted)
    assert args[first : first + 7] == [
        "--ro-bind",
        "/tree",
        "/",
        "--ro-bind",
        "/usr",
        "/usr",
        "--proc",
    ]


def test_with_operators_mounts_the_tree_is_mounted_in_parts(tmp_path: Path) -> None:
    """bwrap must be able to make their mount points."""
    (tmp_path / "etc").mkdir()
    for name in ("etc/passwd", "etc/nsswitch.conf"):
        (tmp_path / name).touch()
    (tmp_path / "bin").symlink_to("usr/bin")
    args = bwrap(root=replace(TREE, path=tmp_path), read_only=[(Path("/src"), "/data")])
    parts = [("/usr", "/usr")]
    parts += [(f"{tmp_path}/etc/{name}", f"/etc/{name}") for name in ("nsswitch.conf", "passwd")]
    binds = [(args[at + 1], args[at + 2]) for at, word in enumerate(args) if word == "--ro-bind"]
    assert sorted(binds) == sorted([*parts, ("/src", "/data")])
    assert args[args.index("/bin") - 2 : args.index("/bin")] == ["--symlink", "usr/bin"]
    assert args[args.index("/var/tmp") - 1] == "../tmp"


def test_scratch_is_sized() -> None:
    args = bwrap()
    at = args.index("/tmp", args.index("--tmpfs") - 4)
    assert args[at - 3 : at + 1] == ["--size", "1000", "--tmpfs", "/tmp"]
    at = args.index("/dev/shm")
    assert args[at - 3 : at + 1] == ["--size", "1000", "--tmpfs", "/dev/shm"]
    for place in ("/proc/1", "/proc/fs"):
        at = args.index(place)
        assert args[at - 3 : at + 1] == ["--size", "4096", "--tmpfs", place]
    assert args.count("--tmpfs") == 4


def test_every_namespace_is_new_and_none_can_be_made_inside() -> None:
    args = bwrap()
    for option in ("user", "ipc", "pid", "net", "uts", "cgroup-try"):
        assert f"--unshare-{option}" in args
    for option in ("--disable-userns", "--new-session", "--die-with-parent", "--clearenv"):
        assert option in args
    assert args[args.index("--cap-drop") + 1] == "ALL"
    assert args[args.index("--seccomp") + 1] == "16"
    assert "--block-fd" not in args  # it fails open
    assert "--share-net" not in args


def test_only_the_operators_switch_shares_the_network() -> None:
    assert "--unshare-net" not in bwrap(network=True)


def test_the_environment_is_what_is_given_and_nothing_else() -> None:
    args = bwrap(env={"A": "1", "PATH": "/mine"})
    names = [args[i + 1] for i, arg in enumerate(args) if arg == "--setenv"]
    assert names == ["PATH", "HOME", "LANG", "TMPDIR", "A"]
    assert args[args.index("PATH") + 1] == "/mine"


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")])
def test_variables_cannot_contain_options(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="not a variable"):
        bwrap(env={name: value})


@pytest.mark.parametrize("value", ["--bind", "a\nb", "$(id)", "--"])
def test_values_are_taken_as_they_are(value: str) -> None:
    args = bwrap(env={"A": value})
    assert args[args.index("A") + 1] == value


@pytest.mark.parametrize(
    "place",
    [
        *("/job", "/job/data", "/job/../job/x", "/tmp", "/tmp/x", "/var/tmp/x", "/proc/1", "/dev"),
        *("/dev/shm/x", "/sys", "/etc/passwd", "/", "//", "relative", "../x", ""),
    ],
)
def test_operators_binds_are_not_below_what_the_job_can_write(place: str) -> None:
    with pytest.raises(SandboxBroken, match="cannot mount on"):
        bwrap(read_only=[(Path("/opt"), place)])


@pytest.mark.parametrize("place", ["/opt/tools", "/data", "/job2", "/tmpfoo", "/usr/share/x"])
def test_operators_binds_are_read_only(place: str) -> None:
    args = bwrap(read_only=[(Path("/src"), place)])
    at = args.index("/src")
    assert args[at - 1 : at + 2] == ["--ro-bind", "/src", place]
