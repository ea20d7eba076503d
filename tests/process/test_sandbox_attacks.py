"""Bundles that attack parts of the sandbox: gate, end, logs, disk, collector, other jobs.

Each is harmless if the sandbox fails.
"""

from __future__ import annotations

import asyncio
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.collect.pack import collect
from client_agent.sandbox.base import Ended
from shared.wire import Reason
from tests.kit.kernel_features import offers
from tests.kit.real_sandbox import (
    MIB,
    SETTINGS,
    SMALL,
    Started,
    Who,
    bash,
    can,
    in_child,
    names_in,
    opened,
    python,
    run,
    start,
)
from tests.kit.waiting import until

# ---------------------------------------------------------------- start and end


def test_output_that_looks_like_the_gates_ready_byte_is_stored(who: Who) -> None:
    assert run(bash("printf '\\n\\ngo\\n'\n"), who).stdout == "\n\ngo\n"


def test_a_job_that_kills_all_it_can_kills_itself_only(who: Who) -> None:
    script = "sleep 30 & kill -9 1; kill -9 -1; wait; echo alone; kill -9 $$\n"
    outcome = run(bash(script), who)
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.EXIT_CODE, 137)
    assert outcome.stdout == "alone\n"
    assert outcome.survivors == []


async def descriptors_of_the_init(started: Started) -> set[str]:
    folder = Path(f"/proc/{started.process.pid}/fd")
    return {str(link.readlink()).split(":")[0] for link in folder.iterdir()}


def test_the_init_cannot_be_stopped_or_seen_and_holds_nothing_of_the_agents(who: Who) -> None:
    program = """
import os, signal
for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT):
    os.kill(1, number)
print(os.listdir("/proc/1"), os.access("/proc/1", os.W_OK), os.path.exists("/proc/1/mem"))
"""
    outcome = run(python(program, before_go=descriptors_of_the_init), who)
    assert outcome.ended.exit_code == 0
    assert outcome.stdout == "[] False False\n"
    assert outcome.extra == {"anon_inode", "pipe", "socket"}  # a socket is its end of the gate


def test_a_job_that_closes_its_pipes_early_is_waited_for(who: Who) -> None:
    outcome = run(bash("exec >&- 2>&-; sleep 0.3; echo done >file; exit 4\n"), who)
    assert outcome.ended.exit_code == 4
    assert outcome.files["file"] == b"done\n"


def test_a_stopped_job_is_continued_and_can_handle_sigterm(who: Who) -> None:
    script = "trap 'echo saved >state; exit 0' TERM\nkill -STOP $$\nsleep 30\n"
    outcome = run(bash(script, timeout_s=0.3, grace_s=10.0), who)
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.TIMEOUT, 0)
    assert outcome.files["state"] == b"saved\n"
    assert outcome.ended.usage.wall_s < 5


def test_children_get_sigterm_too(who: Who) -> None:
    script = "(trap 'echo t >child; exit' TERM; while :; do sleep 0.02; done) &\n"
    script += "trap : TERM; wait; wait\n"
    outcome = run(bash(script, timeout_s=0.3, grace_s=10.0), who)
    assert outcome.files["child"] == b"t\n"


def test_a_fork_bomb_does_not_escape_the_kill(who: Who) -> None:
    script = "trap '' TERM\nf() { f & f & }\nf >/dev/null 2>&1\nsleep 20\n"
    outcome = run(bash(script, timeout_s=0.5, grace_s=0.2), who)
    assert outcome.ended.certain
    assert outcome.survivors == []


def test_go_after_a_stop_starts_nothing(who: Who) -> None:
    async def late(home: Path) -> tuple[Ended, str, list[str]]:
        job = bash("echo ran >ran; echo ran\n")
        async with opened(job, home) as sandbox:
            started = await start(sandbox, job, home)
            started.process.stop(Reason.SHUTDOWN, "the agent leaves", grace=True)
            started.process.go()
            ended = await started.process.wait()
            left = names_in(started)
            assert await started.process.wait() == ended
            await started.workspace.destroy()
            return ended, started.stdout, left

    ended, stdout, left = in_child(lambda home: asyncio.run(late(home)), who)
    assert (ended.reason, ended.exit_code) == (Reason.SHUTDOWN, None)
    assert (stdout, left) == ("", ["run.sh"])


def test_the_first_reason_counts_and_later_ones_are_warnings(who: Who) -> None:
    async def twice(started: Started) -> None:
        await until(lambda: bool(started.stdout))
        started.process.stop(None, "cancelled by its user")
        started.process.stop(Reason.SHUTDOWN, "the agent leaves", grace=False)

    outcome = run(bash("trap '' TERM; echo up; sleep 20; sleep 20\n", during=twice), who)
    assert (outcome.ended.reason, outcome.ended.message) == (None, "cancelled by its user")
    assert outcome.ended.warnings == ("the agent leaves",)
    assert outcome.ended.usage.wall_s < 5


# ---------------------------------------------------------------- memory, CPU, processes


def test_a_child_killed_for_memory_ends_the_job_whatever_the_exit_code_of_run_sh(who: Who) -> None:
    script = "head -c 400M /dev/zero | tail -c 390M >/dev/null; sleep 0.2; exit 0\n"
    outcome = run(bash(script), who)
    if offers(who, "memory"):
        assert outcome.ended.reason is Reason.MEMORY_LIMIT
    else:
        assert "memory exhausted" in outcome.stderr


def test_scratch_counts_as_memory(who: Who) -> None:
    script = "head -c 40M /dev/zero >/tmp/a; head -c 40M /dev/zero >/dev/shm/b; sleep 9\n"
    settings = replace(SETTINGS, scratch=100 * MIB)
    limits = SMALL.model_copy(update={"memory": 64 * MIB})
    outcome = run(bash(script, settings=settings, limits=limits), who)
    assert outcome.ended.reason is Reason.MEMORY_LIMIT


def test_many_names_in_scratch_count_as_memory(who: Who) -> None:
    """Symlinks have no bytes: only the kernel's memory for each."""
    program = """
import os, time
for i in range(200000): os.symlink("x", f"/tmp/{i}")
time.sleep(9)
"""
    limits = SMALL.model_copy(update={"memory": 64 * MIB})
    assert run(python(program, limits=limits), who).ended.reason is Reason.MEMORY_LIMIT


def test_one_process_cannot_allocate_more_memory_than_its_job_has(who: Who) -> None:
    program = "import mmap\ntry: mmap.mmap(-1, 300 << 20); print('got it')\n"
    program += "except OSError as problem: print(problem.strerror)\n"
    outcome = run(python(program), who)
    soft = "Cannot allocate memory\n"  # a cgroup counts memory when it is used
    assert outcome.stdout == ("got it\n" if offers(who, "memory") else soft)


MANY = """
import mmap, os, time
for i in range(6):
    if os.fork() == 0:
        m = mmap.mmap(-1, 40 << 20)
        for o in range(0, 40 << 20, 4096): m[o] = 1
        time.sleep(5); os._exit(0)
for i in range(6): os.wait()
"""


def test_the_memory_of_many_small_processes_is_summed(who: Who) -> None:
    """RLIMIT_AS alone lets this pass."""
    assert run(python(MANY), who).ended.reason is Reason.MEMORY_LIMIT


MEMFD = """
import os, time
held = []
for i in range(8):
    held.append(os.memfd_create("x"))
    for j in range(40): os.write(held[-1], bytes(1 << 20))
time.sleep(5)
"""


def test_files_in_memory_count_if_no_process_maps_them(who: Who) -> None:
    """RLIMIT_AS does not see them, nor does any process's size."""
    assert run(python(MEMFD), who).ended.reason is Reason.MEMORY_LIMIT


def test_memory_that_is_shared_counts_once(who: Who) -> None:
    program = """
import mmap, os, time
m = mmap.mmap(-1, 60 << 20)
for o in range(0, 60 << 20, 4096): m[o] = 1
for i in range(6):
    if os.fork() == 0:
        sum(m[o] for o in range(0, 60 << 20, 4096)); time.sleep(0.4); os._exit(0)
for i in range(6): os.wait()
"""
    assert run(python(program), who).ended.reason is None


async def throttling(started: Started) -> int:
    """In how many periods the kernel made the job wait for its share, once it has ended."""
    await started.process.wait()
    return 0 if started.workspace.group is None else started.workspace.group.throttled()


BURN = """
import os, time
big = bytearray(40 << 20)
big[::4096] = b"x" * len(big[::4096])
if os.fork() == 0:
    while time.process_time() < 0.3: pass
    os._exit(0)
os.wait()
if os.fork() == 0:  # reaped by nobody but the init
    if os.fork() == 0:
        while time.process_time() < 0.3: pass
        os.symlink(str(os.getpid()), "done")
    os._exit(0)
os.wait()
while not os.path.lexists("done"): time.sleep(0.01)
while os.path.exists("/proc/" + os.readlink("done")): time.sleep(0.01)  # until it is reaped
"""


def test_usage_is_reported_for_all_processes(who: Who) -> None:
    used = run(python(BURN), who).ended.usage
    assert used.cpu_s is not None
    assert used.peak_memory_bytes is not None
    assert 0.6 <= used.cpu_s < 3
    assert used.wall_s >= 0.6
    assert 40 * MIB <= used.peak_memory_bytes < SMALL.memory


def test_cpu_time_of_many_processes_is_summed(who: Who) -> None:
    limits = SMALL.model_copy(update={"cpus": 0.3})
    script = "for i in 1 2 3; do timeout 9 bash -c 'while :; do :; done' & done; wait\n"
    outcome = run(bash(script, limits=limits, timeout_s=2.0, during=throttling), who)
    assert outcome.ended.usage.cpu_s is not None
    if offers(who, "cpu"):
        assert outcome.extra > 0
    assert outcome.ended.usage.cpu_s < (1.2 if offers(who, "cpu") else 2.5)
    expected = {Reason.TIMEOUT} if offers(who, "cpu") else {Reason.CPU_LIMIT, Reason.TIMEOUT}
    assert outcome.ended.reason in expected


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
time.sleep(1)
"""


def test_deleted_files_that_are_open_count(who: Who) -> None:
    outcome = run(python(DELETED), who)
    if offers(who, "disk"):
        assert outcome.stdout == "No space left on device\n"
        assert outcome.ended.warnings[0].startswith("disk_limit: the disk of ")
    else:
        assert outcome.ended.reason is Reason.DISK_LIMIT


def test_a_disk_that_was_full_for_a_while_is_a_warning(who: Who) -> None:
    script = "for i in $(seq 8); do head -c 8M /dev/zero >$i || break; done; sleep 0.4; rm ?\n"
    outcome = run(bash(script), who)
    if offers(who, "disk"):
        assert (outcome.ended.reason, outcome.ended.exit_code) == (None, 0)
        assert outcome.ended.warnings == ("disk_limit: the disk of 48.0 MiB was full for a while",)
    else:
        assert outcome.ended.reason is Reason.DISK_LIMIT


def test_the_next_job_gets_an_empty_directory(who: Who) -> None:
    """Whether its image is used again or not."""

    async def after(home: Path) -> list[tuple[str, list[str]]]:
        seen = []
        scripts = (
            "echo secret >file; mkdir -p a/b; chmod 000 a; mkfifo f\n",
            "for i in $(seq 2500); do : >$i; done\n",
            "head -c 40M /dev/urandom >big\n",
            "true\n",
        )
        async with opened(bash(""), home) as sandbox:
            for i, script in enumerate(scripts):
                job = bash("ls -A /job /tmp /dev/shm >/tmp/seen; " + script)
                job = replace(job, bundle={"run.sh": "cat /tmp/* 2>/dev/null; " + script})
                workspace = await sandbox.prepare(f"a-{i}", 0, job.limits)
                names = sorted(path.name for path in workspace.path.iterdir())
                place = str(workspace.path.parent)
                await workspace.destroy()
                started = await start(sandbox, job, home, f"b-{i}")
                started.process.go()
                await started.process.wait()
                await started.workspace.destroy()
                seen.append((place, names))
        return seen

    seen = in_child(lambda home: asyncio.run(after(home)), who)
    assert [names for _, names in seen] == [[]] * 4
    if who == "root":
        places = [place for place, _ in seen]
        assert places[0] == places[1]  # used again: as good as new
        assert len(set(places)) >= 2  # too many files: discarded


def test_a_job_cannot_make_its_image_grow_for_the_next() -> None:
    if not can("root"):
        pytest.skip("not root: that a disk image is thrown away when it grew is not proved")

    async def grown(home: Path) -> tuple[int, int]:
        job = bash("head -c 300M /dev/zero >big; rm big\n")
        job = replace(job, limits=SMALL.model_copy(update={"disk": 320 * MIB}))
        async with opened(job, home) as sandbox:
            started = await start(sandbox, job, home)
            started.process.go()
            await started.process.wait()
            stored = [p.stat().st_blocks * 512 for p in (home / "agent/images").glob("*.img")]
            await started.workspace.destroy()
            kept = [p.stat().st_blocks * 512 for p in (home / "agent/images").glob("*.img")]
        return max(stored), max(kept, default=0)

    stored, kept = in_child(lambda home: asyncio.run(grown(home)), "root")
    assert kept < 64 * MIB < stored


# ---------------------------------------------------------------- logs


def test_both_streams_can_flood_at_once(who: Who) -> None:
    script = "(yes out | head -c 400M) & (yes err | head -c 400M >&2) & wait\n"
    outcome = run(bash(script), who)
    assert outcome.ended.reason is Reason.LOG_LIMIT
    assert outcome.stdout_bytes < SMALL.log + 100
    assert len(outcome.stderr) < SMALL.log + 100
    assert outcome.grown < 32 * MIB


def test_many_tiny_writes_are_stored(who: Who) -> None:
    program = "import os\nfor i in range(60000): os.write(1, b'.')\n"
    outcome = run(python(program), who)
    assert outcome.stdout == "." * 60000


def test_a_forged_marker_is_stored_as_text(who: Who) -> None:
    outcome = run(bash("echo '[ferryman: 7 bytes are left out here]'\n"), who)
    assert outcome.ended.warnings == ()
    assert outcome.stdout == "[ferryman: 7 bytes are left out here]\n"


# ---------------------------------------------------------------- the collector


def test_a_tree_too_deep_to_collect_can_be_deleted(who: Who) -> None:
    program = """
import os
for i in range(3000):
    os.mkdir("d"); os.chdir("d")
open("leaf", "w").close()
"""
    outcome = run(python(program), who)
    if outcome.ended.reason is None:
        assert "folders are nested more than" in str(outcome.results_limit)
    else:  # softly, the polling saw it first
        assert outcome.ended.reason is Reason.DISK_LIMIT
    assert {Path(path).name for path in outcome.left} <= {"work", "images"}


def test_a_job_may_remove_all_permissions_of_its_directory(who: Who) -> None:
    outcome = run(bash("echo kept >file; chmod 000 file .\n"), who)
    assert outcome.files["file"] == b"kept\n"
    assert {Path(path).name for path in outcome.left} <= {"work", "images"}


def test_files_of_the_job_keep_the_names_of_the_agents_files(who: Who) -> None:
    script = "echo theirs >Stdout.LOG; mkdir stderr.log; echo x >stderr.log/x; echo ours\n"
    outcome = run(bash(script), who)
    assert outcome.files["Stdout.LOG"] == b"theirs\n"
    assert outcome.files["stdout.ferryman.log"] == b"ours\n"
    assert outcome.files["stderr.ferryman.log"] == b""
    assert outcome.files["stderr.log/x"] == b"x\n"


RACE = """
import os, threading, time
end = time.monotonic() + 3
os.mkdir("real"); open("real/f", "w").write("fine")
while time.monotonic() < end and not os.path.exists("stop"):
    for source in ("/etc/passwd", "/proc/self/environ", "/"):
        try:
            os.symlink(source, "swap.new"); os.rename("swap.new", "swap"); os.unlink("swap")
            os.mkdir("swap"); open("swap/f", "w").write("fine")
            os.unlink("swap/f"); os.rmdir("swap")
            os.mkfifo("swap"); os.unlink("swap")
            open("swap", "w").write("fine"); os.unlink("swap")
        except OSError: pass
"""


def test_snapshots_of_a_job_that_swaps_files_never_leave_its_directory(who: Who) -> None:
    async def snapshots(started: Started) -> list[tuple[str, bytes]]:
        await until(lambda: "real" in names_in(started))
        seen = []
        for i in range(40):
            dest = started.launch.stdout.with_name(f"{i}.zip")
            fd = started.workspace.fd
            await asyncio.to_thread(collect, fd, dest, SMALL, {}, lambda _: b"{}")
            with zipfile.ZipFile(dest) as archive:
                seen += [(n, archive.read(n)) for n in archive.namelist() if "swap" in n]
            dest.unlink()
        started.process.stop(None, "seen enough", grace=False)
        return seen

    outcome = run(python(RACE, during=snapshots), who)
    assert {content for _, content in outcome.extra} <= {b"", b"fine"}
