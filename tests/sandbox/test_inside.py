"""What a job can see, call and use from inside; each protection of the sandbox alone, when another
one is turned off."""

import ctypes
import os
import platform
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.bubblewrap import command, root_tree, seccomp, selftest
from client_agent.sandbox.kernel import pidfd, start_namespace
from tests.kit.child import Who
from tests.kit.each import each
from tests.sandbox.conftest import without
from tests.sandbox.kernel_features import offers
from tests.sandbox.real_sandbox import (
    MIB,
    SETTINGS,
    SMALL,
    Job,
    SandboxHost,
    Started,
    bash,
    python,
    refusal,
    run,
)

x86_only = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="not x86_64: refused calls are not proved"
)


CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, nr, *args in [
    ("keyctl", 250, 0, -3), ("add_key", 248, b"user", b"x", b"y", 1, -3), ("bpf", 321, 0, 0, 0),
    ("io_uring_setup", 425, 1, 0), ("ptrace", 101, 16, 1, 0, 0), ("clone3", 435, 0, 0),
    ("perf_event_open", 298, 0, 0, 0, 0, 0), ("userfaultfd", 323, 1), ("setns", 308, 0, 0),
    ("process_vm_readv", 310, 1, 0, 0, 0, 0, 0), ("open_by_handle_at", 304, 0, 0, 0),
    ("move_pages", 279, 0, 0, 0, 0, 0, 0), ("init_module", 175, 0, 0, 0),
    ("inotify_init1", 294, 0), ("inotify_init", 253), ("fcntl", 72, 0, 1026, 1),
    ("ustat", 136, os.stat("/tmp").st_dev, ctypes.create_string_buffer(64)), ("sysfs", 139, 3),
    ("unshare", 272, 0x10000000), ("clone", 56, 0x10000011, 0, 0, 0, 0),
]:
    ctypes.set_errno(0)
    got = libc.syscall(nr, *args)
    print(name, got if got >= 0 else os.strerror(ctypes.get_errno()))
"""


def results_of_calls(host: SandboxHost, *allow: str) -> dict[str, str]:
    lines = host.run(python(CALLS, allow=frozenset(allow))).stdout.splitlines()
    return dict(line.split(" ", 1) for line in lines)


@x86_only
def test_dangerous_system_calls_are_refused_unless_a_relaxation_permits_them(host) -> None:
    results = results_of_calls(host)
    enosys = {"io_uring_setup", "clone3", "inotify_init", "inotify_init1", "ustat", "sysfs"}
    expected = dict.fromkeys(results, "Operation not permitted")
    assert results == expected | dict.fromkeys(enosys, "Function not implemented")
    assert len(results) == 20
    results = results_of_calls(host, "io_uring", "process_vm", "inotify")
    assert results["io_uring_setup"] == "Bad address"
    assert results["process_vm_readv"] != "Operation not permitted"
    assert results["inotify_init"].isdigit()
    assert results["fcntl"] == "Not a directory"
    assert results["ptrace"] == results["keyctl"] == "Operation not permitted"


INT80 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
print("LEAK", ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""


@x86_only
def test_the_i386_entry_kills(host: SandboxHost) -> None:
    outcome = host.run(Job({"run.sh": "python3 c.py; echo $?\n", "c.py": INT80}))
    assert outcome.stdout == f"{128 + signal.SIGSYS}\n"


async def status_of_the_init(started: Started) -> str:
    return Path(f"/proc/{started.process.pid}/status").read_text()


def test_filter_and_no_new_privileges_hold_for_the_init_too(host: SandboxHost) -> None:
    outcome = host.run(bash("cat /proc/self/status\n", before_go=status_of_the_init))
    for status in (outcome.stdout, outcome.extra):
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        found = [fields[name] for name in ("Seccomp", "NoNewPrivs", "CapBnd", "CapPrm")]
        assert found == ["2", "1", "0" * 16, "0" * 16]


CALLS_OUT = r"""
import socket
for family, address in ((socket.AF_UNIX, "\0{name}"), (socket.AF_INET, ("127.0.0.1", {port}))):
    try:
        with socket.socket(family) as s: s.connect(address)
        print("reached")
    except OSError as problem: print(problem.strerror)
a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1))
"""


def test_sockets_of_the_host_are_reached_only_with_its_network(host: SandboxHost) -> None:
    """And abstract ones, where desktops and buses of the same user listen, not even so."""
    name, seen = f"ferryman-{os.getpid()}", []
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        unix.bind(f"\0{name}")
        tcp.bind(("127.0.0.1", 0))
        for listening in (unix, tcp):
            listening.listen()
        program = CALLS_OUT.format(name=name, port=tcp.getsockname()[1])
        for network, allow in ((False, ()), (True, ()), (True, ("unix_sockets",))):
            limits = SMALL.model_copy(update={"network": network})
            job = python(program, limits=limits, allow=frozenset(allow))
            seen.append(host.run(job).stdout.splitlines())
    refused, no_family = "Connection refused", "Address family not supported by protocol"
    assert seen == [
        [refused, refused, "b'x'"],
        [no_family, "reached", "b'x'"],
        ["reached", "reached", "b'x'"],
    ]


# ---------------------------------------------------------------- files


def test_the_host_is_not_visible_in_dev_sys_and_mounts(host: SandboxHost) -> None:
    script = "ls /dev; echo --; ls -A /sys /run /boot 2>/dev/null; echo --; "
    outcome = host.run(bash(f"{script} cat /proc/self/mountinfo\n"))
    dev, rest, mounts = outcome.stdout.split("--\n")
    known = "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero console"
    assert set(dev.split()) <= set(known.split())
    assert rest == ""
    if offers(host.who, "disk"):  # a bind shows where it came from, an image does not
        assert "ferryman-test" not in mounts
    assert "/run/ferryman" not in mounts


def test_proc_shows_nothing_of_the_host_and_of_other_jobs(host: SandboxHost) -> None:
    """Such as the free space of a disk in /proc/fs."""
    names = "keys cmdline diskstats locks partitions"
    *there, cpus = host.say(f"cd /proc; cat {names}; ls {names}; wc -l <cpuinfo\n").split()
    assert set(there) == {name for name in names.split() if Path("/proc", name).exists()}
    assert int(cpus) > 0
    assert os.listdir("/proc/fs") != []  # noqa: PTH208  # the host's own is not empty
    script = "find /proc/fs -mindepth 1; mkdir /proc/fs/x 2>&1 | grep -o 'Read-only.*'\n"
    assert host.say(script) == "Read-only file system\n"


def test_etc_contains_what_programs_need_and_no_account_of_the_host(host: SandboxHost) -> None:
    script = "find /etc -maxdepth 2 -mindepth 1; echo --; cat /etc/passwd /etc/group /etc/hosts\n"
    there, _, files = host.say(script).partition("--\n")
    generated = {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/ssl"}
    assert generated <= set(there.split())
    bound = tuple(root_tree.COPIED)
    assert [path for path in there.split() if not path.startswith((*generated, *bound))] == []
    named = "ld.so.cache ld.so.conf ld.so.conf.d alternatives ssl/certs ssl/openssl.cnf localtime"
    assert set(bound) <= {f"/etc/{name}" for name in f"{named} nsswitch.conf".split()}
    assert files == root_tree.PASSWD + root_tree.GROUP + root_tree.HOSTS


def test_mounts_ignore_set_uid_bits_and_devices(host: SandboxHost) -> None:
    """Neither set-uid bits nor device nodes mean anything; what is not the job's is read-only."""
    mounts = {}
    for line in host.say("cat /proc/self/mountinfo\n").splitlines():
        fields = line.split()
        mounts[fields[4]] = {*fields[5].split(","), *fields[-1].split(",")}
    writable = {place for place, flags in mounts.items() if "ro" not in flags}
    prepared = "/dev/null" not in mounts  # then the nodes are in a read-only file system
    devices = set() if prepared else {f"/dev/{name}" for name in start_namespace.NODES}
    devices |= {f"/proc/{name}" for name in command.HIDDEN_PROC_FILES}  # covered by /dev/null
    assert writable == {"/job", "/tmp", "/dev/shm", "/dev/pts", "/proc", *devices}
    with_nodes = devices | {"/dev/pts"} | ({"/dev"} if prepared else set())
    assert [place for place, flags in mounts.items() if "nosuid" not in flags] == []
    assert [
        place for place, flags in mounts.items() if "nodev" not in flags and place not in with_nodes
    ] == []


LOOK_AT_DEV = """
ls /dev | tr '\\n' ' '; echo
echo x >/dev/null && head -c 4 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c
touch /dev/new 2>/dev/null && echo written
stat -f -c %T /dev/shm && touch /dev/shm/new && echo shared
grep -c ' /dev .*,*ro[, ]' /proc/self/mountinfo
ls /dev/pts; sh -c 'exec 3<>/dev/ptmx; ls /dev/pts'
"""


def test_a_prepared_dev_is_read_only_and_has_what_bwrap_makes(host: SandboxHost) -> None:
    """The job of a root agent gets one; its root is nobody of the sandbox, so it cannot write to it
    whatever the mount says."""
    names = "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "
    expected = [names, "4", "4", "tmpfs", "shared", "1", "ptmx", "0", "ptmx"]
    assert host.say(LOOK_AT_DEV).splitlines() == expected


def test_a_job_takes_a_part_of_the_terminals_of_the_host(host: SandboxHost) -> None:
    program = """
import os
held = []
try:
    while len(held) < 300:
        held.append(os.open("/dev/ptmx", os.O_RDWR))
except OSError:
    pass
places = [line.split()[4] for line in open("/proc/self/mountinfo")]
print(len(held), "/dev/null" in places)
"""
    # With bwrap's own /dev, whose nodes are bound one by one, nothing bounds them.
    assert host.run(python(program)).stdout in ("128 False\n", "300 True\n")


# ---------------------------------------------------------------- names, sessions, descriptors


@pytest.fixture
def segment() -> Iterator[int]:
    """A System V memory segment of the host's that everybody may use: its key."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x46455252 ^ os.getpid()
    made = libc.shmget(key, 4096, 0o1000 | 0o666)  # IPC_CREAT
    assert made >= 0
    yield key
    libc.shmctl(made, 0, None)  # IPC_RMID


def test_the_hosts_name_and_what_else_it_names_are_not_visible(host, segment) -> None:
    """Memory segments and queues, and paths of cgroups."""
    program = f"import ctypes\nprint(ctypes.CDLL(None).shmget({segment}, 4096, 0o666))\n"
    program += 'print([len(open(f"/proc/sysvipc/{k}").readlines()) for k in ("shm","msg","sem")])\n'
    assert host.run(python(program)).stdout == "-1\n[1, 1, 1]\n"
    name, *places = host.say("uname -n; cut -d: -f3 /proc/self/cgroup | sort -u\n").splitlines()
    assert name == "sandbox"
    assert not [place for place in places if "ferryman" in place]
    if offers(host.who, "memory"):
        assert places == ["/"]


def test_a_job_has_a_session_of_its_own_and_no_terminal(host: SandboxHost) -> None:
    """Else a signal to its group is one to bwrap's outer process, which must never get one."""
    script = "cut -d' ' -f6 /proc/self/stat; (: </dev/tty) 2>&1 | grep -c 'No such device'; "
    outcome = host.run(bash(f"{script}trap : TERM; kill 0; echo on\n"))
    session, no_terminal, went_on = outcome.stdout.split()
    assert session != "0", "a session that began outside is shown as 0"
    assert (no_terminal, went_on, outcome.ended.reason) == ("1", "on", None)


def test_descriptors_of_the_agent_and_the_gates_pipe_do_not_reach_the_job(who: Who) -> None:
    def with_a_descriptor() -> None:
        os.set_inheritable(os.open("/etc/passwd", os.O_RDONLY), True)

    job = bash("readlink /proc/self/fd/0; cat; ls /proc/self/fd\n")
    said = run(job, who, after=with_a_descriptor).stdout
    assert said.split() == ["/dev/null", "0", "1", "2", "3"]


def test_variables_and_arguments_are_data(host: SandboxHost) -> None:
    odd = "a\n--bind / /host\n$(touch /job/pwned)"
    outcome = host.run(Job({}, env={"ODD": odd}, argv=("bash", "-c", "printenv ODD")))
    assert outcome.stdout == odd + "\n"
    assert set(outcome.files) == {"stdout.log", "stderr.log", "ferryman.json"}
    printf = ("bash", "-c", 'printf "%s|" "$@"', "printf")
    job = Job({}, argv=(*printf, "", "a b", "$(id)", "-x", odd))
    assert host.run(job).stdout == f"|a b|$(id)|-x|{odd}|"


# ---------------------------------------------------------------- limits


def test_rlimits_are_in_force(host: SandboxHost) -> None:
    """Softly also those of CPU time and of the size of a file."""
    words = host.say("ulimit -Hn; ulimit -Hc; ulimit -Hu; ulimit -Ht; ulimit -Hf\n", timeout_s=7.0)
    nproc = SMALL.pids + (64 if offers(host.who, "pids") else 0)
    seconds = "unlimited" if offers(host.who, "cpu") else "17"  # 7 s of one CPU, and 10
    blocks = "unlimited" if offers(host.who, "disk") else str(SMALL.disk // 1024)
    assert words.split() == ["1024", "0", str(nproc), seconds, blocks]


@pytest.mark.parametrize("limit", ["memory", "pids", "cpu", "disk"])
def test_a_limit_is_hard_if_the_kernel_supports_it(limit: str, host: SandboxHost) -> None:
    """Asked of the kernel, so that an agent that does not find its means fails here."""
    offered = offers(host.who, limit)
    assert host.run(bash("true\n")).enforcement[limit] == ("hard" if offered else "soft")
    if not offered and host.who == "root":
        pytest.skip(
            f"this machine's kernel offers no hard {limit} limit: that it holds is not proved"
        )


def test_a_job_starts_with_a_megabyte_of_memory(host: SandboxHost) -> None:
    limits = SMALL.model_copy(update={"memory": 24 * MIB})
    assert host.run(bash("echo hello\n", limits=limits)).ended.exit_code == 0


def test_the_kernel_kills_the_job_before_the_agent(host: SandboxHost) -> None:
    """What a process with CAP_SYS_RESOURCE sets, others cannot lower."""
    outcome = host.run(bash("cd /proc/self; cat oom_score_adj; echo 0 >oom_score_adj\n"))
    assert outcome.stdout == "500\n"
    capabilities = pidfd.status_field(os.getpid(), "CapEff:")
    assert capabilities is not None
    if host.who == "root":
        if not int(capabilities[0], 16) >> 24 & 1:
            pytest.skip("without CAP_SYS_RESOURCE: that oom_score_adj is held is not proved")
        assert "Permission denied" in outcome.stderr


# ---------------------------------------------------------------- each protection alone


def permit_all_calls() -> None:
    """Let every system call pass, in this process."""
    seccomp.RULES = ()  # type: ignore[misc, assignment]
    seccomp.NAMESPACES = 0  # type: ignore[misc]
    seccomp.program.cache_clear()


NEST = """
for kind in U m n p i u C; do unshare -$kind true 2>&1 | cut -d: -f3; done
unshare -Ur true 2>&1 | cut -d: -f3
mount -t tmpfs none /tmp 2>&1 | grep -o 'permission denied\\|must be superuser'
chroot / true 2>&1 | cut -d: -f3
"""
FULL, NO = " No space left on device", " Operation not permitted"


@each(
    "change, kinds",
    [
        # --disable-userns alone: there is no room for another user namespace, and without a
        # capability there are no others
        (permit_all_calls, [FULL, *[NO] * 6, FULL]),
        (without("--disable-userns"), [NO] * 8),  # the filter alone
    ],
)
def test_no_namespace_can_be_made_inside_with_one_protection_less(change, kinds, who) -> None:
    *made, mount, chroot = run(bash(NEST), who, after=change).stdout.splitlines()
    assert made == kinds
    assert (bool(mount), chroot) == (True, NO)


def test_a_sandbox_that_does_not_isolate_fails_its_self_test(who: Who) -> None:
    def pretend_root(_: object) -> None:
        selftest.real_uid = lambda pid: 0

    for change, check in (
        (without("--unshare-net"), "no_network"),
        (pretend_root, "not_root_on_host"),
    ):
        said = f"the sandbox does not hold on this host: {check} "
        assert said in refusal(bash(""), who, change, self_test=True)


def test_without_a_filter_nothing_starts(who: Who) -> None:
    job = bash("echo ran\n", settings=replace(SETTINGS, start_timeout_s=0.3))
    assert "not up within 0.3 s" in refusal(job, who, without("--seccomp", 2))


async def shown(started: Started) -> bool:
    return Path("/proc", str(started.process.pid), "root/usr/bin/bash").exists()


def test_the_end_of_an_agent_removes_its_root_and_nothing_of_the_host(who: Who) -> None:
    """As root, the host's /usr is mounted in it."""
    before = sorted(os.listdir("/usr/bin"))  # noqa: PTH208  # names
    outcome = run(bash("true", before_go=shown), who)
    assert outcome.extra is True or who == "user"
    assert outcome.left == []
    assert sorted(os.listdir("/usr/bin")) == before  # noqa: PTH208


# ---------------------------------------------------------------- where chains are spawned


async def mounts_around(started: Started) -> tuple[list[str], str, str]:
    """Mount points where bwrap was started; the agent's namespace and folder afterwards."""
    lines = Path(f"/proc/{started.outer}/mountinfo").read_text().splitlines()
    own = str(Path("/proc/thread-self/ns/mnt").readlink())
    return [line.split()[4] for line in lines], own, str(Path.cwd())


def test_a_root_agents_chain_is_spawned_where_few_mounts_are(host: SandboxHost) -> None:
    places, own, folder = host.run(bash("true", before_go=mounts_around)).extra
    assert folder == str(Path.cwd())
    if host.who == "root":
        known = ("/usr", "/etc", "/proc", "/dev", "/sys/fs/cgroup", "/run/ferryman", "/lib", "/bin")
        assert [place for place in places if place != "/" and not place.startswith(known)] == []
        assert len(places) < 40
        assert own != str(Path("/proc/self/ns/mnt").readlink())


def test_where_programs_need_more_of_the_host_all_mounts_stay(who: Who) -> None:
    """As on hosts that keep their programs in other folders."""

    def change() -> None:
        start_namespace.PROGRAMS = ()  # type: ignore[misc, assignment]

    def mounts() -> set[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return {line.split()[4] for line in lines}

    own = mounts()
    outcome = run(bash("echo ran", before_go=mounts_around), who, after=change)
    own &= mounts()  # those of other tests come and go
    assert own <= set(outcome.extra[0])
    assert outcome.stdout == "ran\n"
