"""Programs that attack parts of the sandbox: gate, end, logs, disk, collector, other jobs; and all
hostile bundles, which end as tests/hostile/README.md says. Each is harmless if the sandbox fails.
"""

import asyncio
import os
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.collect.pack import collect
from shared.wire import Reason
from tests.kit.child import Who, child_test
from tests.kit.waiting import until
from tests.sandbox.hostile_bundles import EXPECT, SLOW, is_full, is_throttled
from tests.sandbox.kernel_features import offers
from tests.sandbox.real_sandbox import (
    HOSTILE,
    MIB,
    SETTINGS,
    SMALL,
    Sandboxes,
    SandboxHost,
    Started,
    bash,
    opened,
    python,
    running,
    start,
)

# ---------------------------------------------------------------- start and end


def test_output_that_looks_like_the_gates_ready_byte_is_stored(host: SandboxHost) -> None:
    assert host.say("printf '\\n\\ngo\\n'\n") == "\n\ngo\n"


def test_a_job_that_kills_all_it_can_kills_itself_only(host: SandboxHost) -> None:
    outcome = host.run(bash("sleep 30 & kill -9 1; kill -9 -1; wait; echo alone; kill -9 $$\n"))
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.EXIT_CODE, 137)
    assert (outcome.stdout, outcome.survivors) == ("alone\n", [])


async def descriptors_of_the_init(started: Started) -> set[str]:
    folder = Path(f"/proc/{started.process.pid}/fd")
    return {str(link.readlink()).split(":")[0] for link in folder.iterdir()}


def test_the_init_cannot_be_stopped_or_seen_and_holds_nothing_of_the_agents(host) -> None:
    program = """
import os, signal
for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT):
    os.kill(1, number)
print(os.listdir("/proc/1"), os.access("/proc/1", os.W_OK), os.path.exists("/proc/1/mem"))
"""
    outcome = host.run(python(program, before_go=descriptors_of_the_init))
    assert (outcome.ended.exit_code, outcome.stdout) == (0, "[] False False\n")
    assert outcome.extra == {"/dev/null", "anon_inode", "pipe"}


def test_a_job_that_closes_its_pipes_early_is_waited_for(host: SandboxHost) -> None:
    outcome = host.run(bash("exec >&- 2>&-; sleep 0.3; echo done >file; exit 4\n"))
    assert (outcome.ended.exit_code, outcome.files["file"]) == (4, b"done\n")


def test_a_stopped_job_is_continued_and_can_handle_sigterm(host: SandboxHost) -> None:
    script = "trap 'echo saved >state; exit 0' TERM\nkill -STOP $$\nsleep 30\n"
    outcome = host.run(bash(script, over=is_stopped, grace_s=10.0))
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.TIMEOUT, 0)
    assert outcome.files["state"] == b"saved\n"


async def is_stopped(started: Started) -> None:
    def states() -> list[str]:
        found = list[str]()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                state, parent, *_ = path.read_text().rpartition(")")[2].split()
                found += [state] if parent == str(started.process.pid) else []
        return found

    await until(lambda: states() == ["T"])


def test_children_get_sigterm_too(host: SandboxHost) -> None:
    script = "trap : TERM; (trap 'echo t >child; exit' TERM; echo up; while :; do sleep 0.02; done)"
    outcome = host.run(bash(f"{script} & wait; wait\n", over="up", grace_s=10.0))
    assert outcome.files["child"] == b"t\n"


def test_a_fork_bomb_does_not_escape_the_kill(host: SandboxHost) -> None:
    script = "trap '' TERM\nf() { f & f & }\nf >/dev/null 2>&1\nsleep 20\n"
    outcome = host.run(bash(script, over=is_full, grace_s=0.1))
    assert (outcome.ended.certain, outcome.survivors) == (True, [])


async def stop_twice(started: Started) -> None:
    await started.says()
    started.process.stop(None, "cancelled by its user")
    for size in range(5):  # a gauge says it at each look
        started.process.stop(Reason.DISK_LIMIT, f"the job stored {size} MiB")
    started.process.stop(Reason.SHUTDOWN, "the agent leaves", grace=False)


def test_the_first_reason_counts_and_later_ones_are_warnings(host: SandboxHost) -> None:
    ended = host.run(bash("trap '' TERM; echo up; sleep 20; sleep 20\n", during=stop_twice)).ended
    assert (ended.reason, ended.message) == (None, "cancelled by its user")
    assert ended.warnings == ("the job stored 0 MiB", "the agent leaves")


# ---------------------------------------------------------------- memory, CPU, processes

SCRATCH = "head -c 40M /dev/zero >/tmp/a; head -c 40M /dev/zero >/dev/shm/b; sleep 9\n"
SYMLINKS = """
import os, time
for i in range(200000): os.symlink("x", f"/tmp/{i}")
time.sleep(9)
"""
MANY = """
import mmap, os, time
for i in range(6):
    if os.fork() == 0:
        m = mmap.mmap(-1, 40 << 20)
        for o in range(0, 40 << 20, 4096): m[o] = 1
        time.sleep(5); os._exit(0)
for i in range(6): os.wait()
"""
MEMFD = """
import os, time
held = []
for i in range(8):
    held.append(os.memfd_create("x"))
    for j in range(40): os.write(held[-1], bytes(1 << 20))
time.sleep(5)
"""
LITTLE = SMALL.model_copy(update={"memory": 64 * MIB})


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(
            bash(SCRATCH, limits=LITTLE, settings=replace(SETTINGS, scratch=100 * MIB)),
            id="files in scratch",
        ),
        pytest.param(python(SYMLINKS, limits=LITTLE), id="names without bytes in scratch"),
        pytest.param(python(MANY), id="many small processes"),
        pytest.param(python(MEMFD), id="files that no process maps"),
    ],
)
def test_all_memory_of_a_job_counts(host: SandboxHost, job: Any) -> None:
    """RLIMIT_AS alone sees none of it."""
    assert host.run(job).ended.reason is Reason.MEMORY_LIMIT


def test_a_child_killed_for_memory_ends_the_job_whatever_the_exit_code_of_run_sh(host) -> None:
    script = "head -c 400M /dev/zero | tail -c 390M >/dev/null; sleep 0.2; exit 0\n"
    outcome = host.run(bash(script))
    if offers(host.who, "memory"):
        assert outcome.ended.reason is Reason.MEMORY_LIMIT
    else:
        assert "memory exhausted" in outcome.stderr


def test_one_process_cannot_allocate_more_memory_than_its_job_has(host: SandboxHost) -> None:
    program = "import mmap\ntry: mmap.mmap(-1, 300 << 20); print('got it')\n"
    program += "except OSError as problem: print(problem.strerror)\n"
    soft = "Cannot allocate memory\n"  # a cgroup counts memory when it is used
    assert host.run(python(program)).stdout == ("got it\n" if offers(host.who, "memory") else soft)


def test_memory_that_is_shared_counts_once(host: SandboxHost) -> None:
    program = """
import mmap, os, time
m = mmap.mmap(-1, 60 << 20)
for o in range(0, 60 << 20, 4096): m[o] = 1
for i in range(6):
    if os.fork() == 0:
        sum(m[o] for o in range(0, 60 << 20, 4096)); time.sleep(0.2); os._exit(0)
for i in range(6): os.wait()
"""
    assert host.run(python(program)).ended.reason is None


BURN = """
import os, time
big = bytearray(40 << 20)
big[::4096] = b"x" * len(big[::4096])
if os.fork() == 0:
    while time.process_time() < 0.15: pass
    os._exit(0)
os.wait()
if os.fork() == 0:  # reaped by nobody but the init
    if os.fork() == 0:
        while time.process_time() < 0.15: pass
        os.symlink(str(os.getpid()), "done")
    os._exit(0)
os.wait()
while not os.path.lexists("done"): time.sleep(0.01)
while os.path.exists("/proc/" + os.readlink("done")): time.sleep(0.01)  # until it is reaped
"""


def test_usage_is_reported_for_all_processes(host: SandboxHost) -> None:
    used = host.run(python(BURN)).ended.usage
    assert used.cpu_s is not None
    assert used.peak_memory_bytes is not None
    assert 0.3 <= used.cpu_s < used.wall_s * os.cpu_count()  # type: ignore[operator]
    assert 40 * MIB <= used.peak_memory_bytes < SMALL.memory


SPIN = "for i in 1 2 3; do timeout 60 bash -c 'while :; do :; done' & done; wait\n"


def test_cpu_time_of_many_processes_is_summed(host: SandboxHost) -> None:
    """The kernel makes them wait for their share; else the agent counts."""
    if offers(host.who, "cpu"):
        outcome = host.run(bash(SPIN, limits=SLOW, over=is_throttled))
        assert outcome.ended.reason is Reason.TIMEOUT
    else:
        limits = SMALL.model_copy(update={"cpus": 0.01})
        outcome = host.run(bash(SPIN, limits=limits, timeout_s=30.0))
        assert outcome.ended.reason is Reason.CPU_LIMIT


# ---------------------------------------------------------------- disk

DELETED = """
import os, time
files = []
try:
    for i in range(8):
        files.append(os.open("x", os.O_CREAT | os.O_WRONLY)); os.unlink("x")
        for j in range(12): os.write(files[-1], bytes(1 << 20))
    print("wrote all", flush=True)
except OSError as problem:
    print(problem.strerror, flush=True)
for i in range(3000):
    if os.path.exists("stop"): break
    time.sleep(0.01)
"""


def test_deleted_files_that_are_open_count(host: SandboxHost) -> None:
    hard = offers(host.who, "disk")
    outcome = host.run(python(DELETED, during=Started.is_seen if hard else None))
    if hard:
        assert outcome.stdout == "No space left on device\n"
        assert outcome.ended.warnings[0].startswith("disk_limit: the disk of ")
    else:
        assert outcome.ended.reason is Reason.DISK_LIMIT


def test_a_disk_that_was_full_for_a_while_is_a_warning(host: SandboxHost) -> None:
    script = "for i in $(seq 8); do head -c 8M /dev/zero >$i || break; done; echo full\n"
    script += "for i in $(seq 3000); do [ -e stop ] && break; sleep 0.01; done; rm ?\n"
    hard = offers(host.who, "disk")
    ended = host.run(bash(script, during=Started.is_seen if hard else None)).ended
    if hard:
        assert (ended.reason, ended.exit_code) == (None, 0)
        assert ended.warnings == ("disk_limit: the disk of 48.0 MiB was full for a while",)
    else:
        assert ended.reason is Reason.DISK_LIMIT


LEAVES = (
    "echo secret >file; mkdir -p a/b; chmod 000 a; mkfifo f\n",
    "for i in $(seq 2500); do : >$i; done\n",
    "head -c 40M /dev/urandom >big\n",
    "true\n",
)


async def one_after_the_other(sandboxes: Sandboxes) -> list[tuple[str, list[str], str]]:
    seen = []
    sandbox = await sandboxes.of(bash(""))
    for script in LEAVES:
        job = bash("ls -A /tmp /dev/shm | grep left; echo x >/tmp/left >/dev/shm/left; " + script)
        workspace = await sandbox.prepare(sandboxes.name(), 0, job.limits)
        names = sorted(path.name for path in workspace.path.iterdir())
        place = str(workspace.path.parent)
        await workspace.destroy()
        async with running(sandboxes, job) as started:
            await started.ends()
        seen.append((place, names, started.stdout))
    return seen


def test_the_next_job_gets_an_empty_directory(host: SandboxHost) -> None:
    """Whether its image is used again or not."""
    places, names, said = zip(*host.do(one_after_the_other), strict=True)
    assert [*names, *said] == [*[[]] * 4, *[""] * 4]
    if host.who == "root":
        assert places[0] == places[1]  # used again: as good as new
        assert len(set(places)) >= 2  # too many files: discarded


@child_test
async def test_a_job_cannot_make_its_image_grow_for_the_next(home: Path, root: Who) -> None:
    def stored() -> int:
        files = (home / "agent/images").glob("*.img")
        return max((file.stat().st_blocks * 512 for file in files), default=0)

    limits = SMALL.model_copy(update={"disk": 160 * MIB})
    job = bash("head -c 150M /dev/zero >big; sync big; rm big\n", limits=limits)
    async with opened(job, home) as sandbox:
        started = await start(sandbox, job, home)
        await started.ends()
        assert stored() > 64 * MIB
        await started.workspace.destroy()
        assert stored() < 64 * MIB


def test_both_streams_can_flood_at_once(host: SandboxHost) -> None:
    script = "(yes out | head -c 400M) & (yes err | head -c 400M >&2) & wait\n"
    outcome = host.run(bash(script))
    assert outcome.ended.reason is Reason.LOG_LIMIT
    assert outcome.stdout_bytes < SMALL.log + 100
    assert len(outcome.stderr) < SMALL.log + 100
    assert outcome.grown < 32 * MIB


def test_many_tiny_writes_are_stored(host: SandboxHost) -> None:
    program = "import os\nfor i in range(20000): os.write(1, b'.')\n"
    assert host.run(python(program)).stdout == "." * 20000


def test_a_forged_marker_is_stored_as_text(host: SandboxHost) -> None:
    outcome = host.run(bash("echo '[ferryman: 7 bytes are left out here]'\n"))
    assert outcome.ended.warnings == ()
    assert outcome.stdout == "[ferryman: 7 bytes are left out here]\n"


# ---------------------------------------------------------------- the collector


def test_a_tree_too_deep_to_collect_can_be_deleted(host: SandboxHost) -> None:
    program = """
import os
for i in range(3000):
    os.mkdir("d"); os.chdir("d")
open("leaf", "w").close()
"""
    outcome = host.run(python(program))
    if outcome.ended.reason is None:
        assert "folders are nested more than" in str(outcome.results_limit)
    else:  # softly, the polling saw it first
        assert outcome.ended.reason is Reason.DISK_LIMIT
    assert outcome.left == []


def test_a_job_may_remove_all_permissions_of_its_directory(host: SandboxHost) -> None:
    outcome = host.run(bash("echo kept >file; chmod 000 file .\n"))
    assert (outcome.files["file"], outcome.left) == (b"kept\n", [])


def test_files_of_the_job_keep_the_names_of_the_agents_files(host: SandboxHost) -> None:
    script = "echo theirs >Stdout.LOG; mkdir stderr.log; echo x >stderr.log/x; echo ours\n"
    files = host.run(bash(script)).files
    assert (files["Stdout.LOG"], files["stderr.log/x"]) == (b"theirs\n", b"x\n")
    assert (files["stdout.ferryman.log"], files["stderr.ferryman.log"]) == (b"ours\n", b"")


RACE = """
import os, threading, time
end = time.monotonic() + 9
os.mkdir("real"); open("real/f", "w").write("fine")
while time.monotonic() < end:
    for source in ("/etc/passwd", "/proc/self/environ", "/"):
        try:
            os.symlink(source, "swap.new"); os.rename("swap.new", "swap"); os.unlink("swap")
            os.mkdir("swap"); open("swap/f", "w").write("fine")
            os.unlink("swap/f"); os.rmdir("swap")
            os.mkfifo("swap"); os.unlink("swap")
            open("swap", "w").write("fine"); os.unlink("swap")
        except OSError: pass
"""


async def snapshots(started: Started) -> set[bytes]:
    await until((started.workspace.path / "real").exists)
    seen = set()
    for i in range(40):
        dest = started.launch.stdout.with_name(f"{i}.zip")
        fd = started.workspace.fd
        await asyncio.to_thread(collect, fd, dest, SMALL, {}, lambda _: b"{}")
        with zipfile.ZipFile(dest) as archive:
            seen |= {archive.read(name) for name in archive.namelist() if "swap" in name}
        dest.unlink()
    started.process.stop(None, "seen enough", grace=False)
    return seen


def test_snapshots_of_a_job_that_swaps_files_never_leave_its_directory(host: SandboxHost) -> None:
    assert host.run(python(RACE, during=snapshots)).extra <= {b"", b"fine"}


def test_every_hostile_bundle_has_an_expectation() -> None:
    assert set(EXPECT) == {path.name for path in HOSTILE.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", sorted(EXPECT))
def test_hostile_bundle(name: str, who: Who, host: SandboxHost) -> None:
    job, check = EXPECT[name]
    outcome = host.run(job)
    assert [line for line in outcome.lines if "LEAK" in line] == []
    assert outcome.ended.certain
    assert (outcome.survivors, outcome.left) == ([], [])
    assert outcome.grown < 64 * MIB
    check(outcome, who)
