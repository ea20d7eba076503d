"""What is prepared before jobs come: starts, and who gets them; the root and folders for /dev, and
when they are made again."""

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from client_agent.sandbox.base import Ahead, Grant, Launch, SandboxBroken
from client_agent.sandbox.bubblewrap import prepared_starts, root_tree
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.bubblewrap.root_tree import CHECK_S, RootTree, RootTrees
from client_agent.sandbox.kernel import devices, pidfd
from client_agent.sandbox.kernel.devices import DeviceFolders
from client_agent.sandbox.kernel.work_folders import WorkFolders
from shared.clock import RealClock
from shared.wire import Limits
from tests.kit.child import Who, child_test, dead_within, kill_after_report, processes_of, uid_base
from tests.kit.each import each
from tests.kit.waiting import turns, until
from tests.sandbox.real_sandbox import SETTINGS, SMALL, TOPS, LimitClock, unpack

SAY = {"run.sh": 'echo "$FERRYMAN_JOB_ID $A $(ls) $(id -u)"; echo x >made\n'}
OTHER = SMALL.model_copy(update={"pids": 40})


class Agent:
    """A sandbox that prepares starts, and its jobs."""

    def __init__(self, home: Path) -> None:
        self.home, self.grant, self.serial = home, Grant(env={"A": "a"}), 0
        self.open()

    def open(self, most: int = 1) -> None:
        settings = replace(SETTINGS, uid_base=uid_base(), prepared_starts=most)
        if os.geteuid() == 0:
            settings = replace(settings, prepared_uids=range(uid_base() + 8, uid_base() + 14))
        self.sandbox = Bubblewrap(LimitClock(), self.home / "agent", settings)

    async def prepare(self, limits: Limits = SMALL, script: str = "run.sh") -> Any:
        self.serial += 1
        ahead = Ahead(("bash", script), 20.0, self.grant)
        return await self.sandbox.prepare(f"job-{self.serial}", 0, limits, ahead)

    async def run(self, limits: Limits = SMALL, **env: str) -> tuple[str, str]:
        """Run a job; the name of its workspace, and what it said."""
        workspace, number = await self.prepare(limits), self.serial
        name = workspace.name
        unpack(SAY, workspace)
        out, err = (self.home / f"{workspace.name}.{one}" for one in ("out", "err"))
        variables = {"FERRYMAN_JOB_ID": str(number), **env}
        launch = Launch(("bash", "run.sh"), variables, 20.0, 0.5, out, err, self.grant)
        process = await workspace.start(launch)
        process.go()
        assert (await process.wait()).exit_code == 0
        await workspace.destroy()
        assert err.read_text() == ""
        return name, out.read_text().strip()

    def gates(self) -> list[int]:
        """Processes of starts that wait at their gates."""

        def waits(pid: int) -> bool:  # one that is ending does not, and may be gone
            name, state = (pidfd.status_field(pid, key) for key in ("Name:", "State:"))
            return name == ["bash"] and state is not None and state[0] != "Z"

        below = pidfd.descendants(os.getpid())
        return [pid for pid in below if pidfd.has_seccomp_filter(pid) and waits(pid)]

    async def prepared(self, limits: Limits = SMALL) -> int:
        """Run two jobs, and wait until the start that follows waits at its gate: its process."""
        await self.run(limits)
        await self.run(limits)
        await self.waits()
        return self.gates()[0]

    async def waits(self, count: int = 1) -> None:
        """Until so many starts wait at their gates."""
        await until(lambda: len(self.gates()) >= count)
        await turns(200)


def with_agent(work: Callable[[Agent], Awaitable[None]]) -> Callable[..., None]:
    """A test in a child, as both."""

    @child_test
    async def test(home: Path, who: Who) -> None:
        agent = Agent(home)
        try:
            await work(agent)
        finally:
            await agent.sandbox.close()
        assert pidfd.descendants(os.getpid()) == []
        assert {path.name for path in (home / "agent").iterdir()} <= TOPS

    return test


@with_agent
async def test_the_next_job_gets_a_prepared_start_and_sees_only_its_own(agent: Agent) -> None:
    """Also variables that no shell should see."""
    gate = await agent.prepared()
    if os.geteuid() == 0:
        assert os.listdir(Path(f"/proc/{gate}/root", "job")) == []  # noqa: PTH208  # names
    assert await agent.run(FERRYMAN_X="it's $HOME; \\") == ("ahead-1", "3 a run.sh 1000")
    await agent.waits()
    agent.grant = Grant(env={"A": "b"})  # they come through the gate
    assert await agent.run() == ("ahead-2", "4 b run.sh 1000")
    await agent.waits()
    assert await agent.run(A="it's\nlong") == ("ahead-3", "5 it's\nlong run.sh 1000")


@with_agent
async def test_a_directory_is_there_for_files_once_the_gate_waits(agent: Agent) -> None:
    """A bash without a gate would run what it finds."""
    for _ in range(2):
        workspace = await agent.prepare()
        assert len(agent.gates()) == 1
        await workspace.destroy()


@with_agent
async def test_a_prepared_start_that_died_is_not_used(agent: Agent) -> None:
    fields = pidfd.stat_fields(await agent.prepared())
    assert fields is not None
    init = os.pidfd_open(int(fields[1]))
    signal.pidfd_send_signal(init, signal.SIGKILL)
    assert await asyncio.to_thread(dead_within, init)
    assert (await agent.run())[1] == "3 a run.sh 1000"


@with_agent
async def test_a_start_that_is_given_up_at_any_step_leaves_no_process(agent: Agent) -> None:
    for step in range(20):
        workspace = await agent.prepare(script=f"{step}.sh")
        await turns(step * step * 10)
        await workspace.destroy()


@with_agent
async def test_nothing_is_prepared_for_services_with_folders_of_the_operator(agent: Agent) -> None:
    agent.grant = Grant(read_only=((Path("/usr/share"), "/data"),), env={"A": "a"})
    for name in ("job-1", "job-2", "job-3"):
        assert (await agent.run())[0] == name
        await turns(100)


@child_test
def test_prepared_starts_end_with_their_killed_agent(home: Path, who: Who) -> None:
    async def wait_for_ever(report: Callable[[str], object]) -> None:
        gate = await Agent(home).prepared()
        (uid, *_) = pidfd.status_field(gate, "Uid:") or [""]
        report(f"{gate} {uid}")
        await asyncio.Event().wait()

    async def again() -> None:
        sandbox = Agent(home).sandbox
        await sandbox.clear()
        await sandbox.close()

    gate, uid = kill_after_report(wait_for_ever)
    assert dead_within(gate)
    asyncio.run(again())
    assert list((home / "agent/work").iterdir()) == []
    assert processes_of(int(uid)) == []


# ---------------------------------------------------------------- how many, for whom, how long


@with_agent
async def test_each_is_used_once_and_has_a_uid_of_its_own(agent: Agent) -> None:
    agent.open(most=2)
    await asyncio.gather(*(agent.run() for _ in range(3)))
    await agent.waits(2)
    assert len({pidfd.stat_fields(pid)[1] for pid in agent.gates()}) == 2  # type: ignore[index]
    taken = [await agent.prepare() for _ in range(3)]
    for workspace in taken:
        await workspace.destroy()
    assert [one.name.split("-")[0] for one in taken] == ["ahead", "ahead", "job"]
    assert len({one.uid for one in taken}) == (3 if os.geteuid() == 0 else 1)


@with_agent
async def test_only_the_same_limits_and_the_same_launch_take_it(agent: Agent) -> None:
    """Once a job of another kind has run, it replaces the oldest."""
    oldest = await agent.prepared()
    same = Ahead(("bash", "run.sh"), 20.0, agent.grant)
    for limits, ahead in (
        (OTHER, same),
        (SMALL.model_copy(update={"network": True}), same),
        (SMALL, replace(same, argv=("bash", "other.sh"))),
        (SMALL, replace(same, grant=replace(agent.grant, network=True))),
        (SMALL, replace(same, grant=replace(agent.grant, allow=frozenset({"inotify"})))),
        (SMALL, replace(same, grant=replace(agent.grant, scratch=1 << 20))),
    ):
        workspace = await agent.sandbox.prepare("job-x", 0, limits, ahead)
        assert workspace.name == "job-x"
        await workspace.destroy()
    await agent.prepared(OTHER)
    await until(lambda: oldest not in agent.gates())
    await agent.waits()
    assert (await agent.run(OTHER))[0] == "ahead-2"
    assert (await agent.run())[0] == "job-6"


@with_agent
async def test_with_more_kinds_than_places_some_keep_theirs(agent: Agent) -> None:
    """A kind that comes once gets none."""
    agent.open(most=2)
    kinds = [SMALL.model_copy(update={"pids": pids}) for pids in (30, 31, 32)]
    hits: list[bool] = []
    for waiting in (0, 0, 0, 1, 2, 2, 2, 2, 2):
        kind = kinds[len(hits) % 3]
        hits.append((await agent.run(kind))[0].startswith("ahead"))
        await agent.waits(waiting)
    assert hits == [False] * 6 + [True, True, False]
    assert len(agent.gates()) == 2


@with_agent
async def test_what_nobody_takes_is_removed_after_a_while(agent: Agent) -> None:
    prepared_starts.LIFETIME_S = 0.2  # type: ignore[misc]
    await agent.run()
    await agent.run()
    await until(lambda: bool(pidfd.descendants(os.getpid())))
    await until(lambda: not pidfd.descendants(os.getpid()))
    assert (await agent.run())[0] == "job-3"


@with_agent
async def test_a_job_for_which_something_is_short_gets_what_prepared_starts_have(agent) -> None:
    """What fails without any fails once."""
    problem: Exception
    real, calls, fails = agent.sandbox.make_workspace, list[bool](), lambda: False

    async def make(*given: Any) -> Any:
        calls.append(bool(agent.gates()))
        if fails():
            raise problem
        return await real(*given)

    agent.sandbox.make_workspace = make
    for problem in (SandboxBroken("x"), OSError(24, "too many open files")):
        await agent.prepared()
        calls.clear()
        fails = lambda: True  # noqa: E731
        with pytest.raises(type(problem)):
            await agent.prepare(OTHER)
        assert calls == [True, False]
        fails = lambda: False  # noqa: E731
        await agent.prepared(OTHER)
        calls.clear()
        fails = lambda: calls[-1]  # noqa: E731
        workspace = await agent.prepare()
        await workspace.destroy()
        fails = lambda: False  # noqa: E731
        assert (workspace.name[:4], calls) == ("job-", [True, False])


# ---------------------------------------------------------------- the root


class Host(RealClock):
    """Some files of a host, and an agent without mounts of its own; time passes only when a test
    says so."""

    passed = 0.0

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.etc, self.home = folder / "sources", folder / "home"
        self.etc.mkdir()
        (self.etc / "file").write_text("one\n")
        (self.etc / "certs").mkdir()
        (self.etc / "certs/a.pem").write_text("a\n")
        (self.etc / "certs/link").symlink_to("/usr/share/a.pem")
        sources = [str(self.etc / name) for name in ("file", "certs", "missing")]
        self.trees = RootTrees(WorkFolders(self.home, separate_uids=False), self, sources)

    def monotonic(self) -> float:
        return self.passed

    def tree(self, *, later: bool = False) -> RootTree:
        self.passed += CHECK_S * later
        return self.trees.current(network=False) or self.trees.make(network=False)

    def shown(self, name: str, tree: RootTree | None = None) -> Path:
        return (tree or self.tree()).path / str(self.etc / name)[1:]

    @property
    def made(self) -> list[str]:
        return sorted(path.name for path in (self.home / "roots").iterdir())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    umask = os.umask(0o077)
    try:
        yield Host(tmp_path)
    finally:
        os.umask(umask)


def test_it_has_copies_the_generated_files_and_the_mount_points(host: Host) -> None:
    """What is closed to jobs stays closed in the copy."""
    modes = {"file": 0o640, "certs": 0o700, "certs/a.pem": 0o604}
    for name, mode in modes.items():
        (host.etc / name).chmod(mode)
    tree = host.tree()
    assert {name: host.shown(name).stat().st_mode & 0o777 for name in modes} == modes
    assert host.shown("file").read_text() == "one\n"
    assert host.shown("certs/link").readlink() == Path("/usr/share/a.pem")
    assert not host.shown("missing").exists()
    assert (tree.path / "etc/passwd").read_text() == root_tree.PASSWD
    assert (tree.path / "var/tmp").readlink() == Path("../tmp")
    folders = [tree.path / name for name in (*root_tree.MOUNT_POINTS, "usr", "etc")]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o755}
    assert "/usr" in tree.folders
    assert not tree.mounted


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda etc: (etc / "file").write_text("two\n"),
    "mode": lambda etc: (etc / "file").chmod(0o640),
    "new": lambda etc: (etc / "certs/b.pem").touch(),
    "below": lambda etc: (etc / "certs/a.pem").write_text("other\n"),
    "removed": lambda etc: (etc / "file").unlink(),
    "appears": lambda etc: (etc / "missing").touch(),
}


def test_a_tree_is_made_again_when_a_source_changed(host: Host) -> None:
    for number, (what, change) in enumerate(CHANGES.items(), 1):
        tree = host.tree()
        assert host.tree(later=True) is tree, what
        change(host.etc)
        assert host.tree() is tree, "it is not looked at each time"
        assert host.tree(later=True) is not tree, what
        assert host.made == [f"root.{number + 1}"]
    assert host.shown("certs/b.pem").exists()


def test_a_tree_that_a_job_sees_stays_until_that_job_has_ended(host: Host) -> None:
    first = host.tree()
    first.users += 1
    for text in ("two\n", "three\n"):
        (host.etc / "file").write_text(text)
        host.tree(later=True)
    assert host.made == ["root.1", "root.3"]
    assert host.shown("file", first).read_text() == "one\n"
    first.users -= 1
    (host.etc / "file").write_text("the fourth\n")
    host.tree(later=True)
    assert host.made == ["root.4"]


def test_only_who_uses_the_network_gets_the_resolvers_and_at_the_end_all_goes(host: Host) -> None:
    if not Path(root_tree.COPIED_WITH_NETWORK).exists():
        pytest.skip("this host has no resolv.conf: that it is copied is not proved")
    host.tree().users += 1
    tree = host.trees.make(network=True)
    assert (tree.path / "etc/resolv.conf").exists()
    assert not (host.tree().path / "etc/resolv.conf").exists()
    host.trees.close()
    assert host.made == []


def test_a_folder_that_cannot_be_copied_leaves_no_tree(host, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        host.tree()
    assert host.made == []


class Folders(WorkFolders):
    """Of an agent with mounts, which are plain folders here."""

    has_mounts = True


@pytest.fixture
def make_nodes(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """What makes device nodes, which may fail."""

    def mount(source: str, target: Path, kind: str, *_: object) -> None:
        if kind == "devpts":
            (target / "ptmx").touch()

    made = mock.Mock(side_effect=lambda folder, _: (folder / "null").touch())
    monkeypatch.setattr("client_agent.sandbox.kernel.mounts.mount", mount)
    monkeypatch.setattr(devices, "make_nodes", made)
    return made


def test_each_has_a_dev_of_its_own_and_leaves_it_to_the_next_as_new(make_nodes, tmp_path) -> None:
    made = DeviceFolders(Folders(tmp_path, separate_uids=False))
    first, second = made.take(), made.take()
    assert first is not None
    assert second not in (None, first)
    made.give_back(first)
    assert made.take() == first
    (first / "pts/0").touch()  # a terminal
    made.give_back(first)
    assert made.take() not in (None, first, second)
    without_mounts = WorkFolders(tmp_path, separate_uids=False)
    assert DeviceFolders(without_mounts).take() is None


IMPOSSIBLE = ("EPERM", "EACCES", "EINVAL", "ENODEV", "ENOSYS", "EOPNOTSUPP")


@each("name", [*IMPOSSIBLE, "EMFILE", "ENOMEM", "ENOSPC"])
def test_where_none_can_be_made_bwrap_makes_its_own(make_nodes, tmp_path, name) -> None:
    """One that cannot be made now only is made at the next start."""
    made = DeviceFolders(Folders(tmp_path / name, separate_uids=False))
    works, never = make_nodes.side_effect, name in IMPOSSIBLE
    make_nodes.reset_mock()
    make_nodes.side_effect = OSError(getattr(errno, name), name)
    with capture_logs() as logs:
        assert [made.take(), made.take()] == [None, None]
    make_nodes.side_effect = works
    assert make_nodes.call_count == (1 if never else 2)
    assert [line["event"] for line in logs] == ["sandbox.no_devices"] * never
    assert list((tmp_path / name).rglob("dev.*")) == []
    assert (made.take() is None) == never
