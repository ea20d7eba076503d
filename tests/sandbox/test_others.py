"""Other jobs, other users and root of the host: what a job reaches of them, and they of it."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.bubblewrap import selftest
from client_agent.sandbox.kernel import pidfd
from client_agent.storage.remove_tree import remove_tree
from tests.kit.child import Who
from tests.kit.memory_folder import new_folder
from tests.sandbox.real_sandbox import (
    ON_DISK,
    SETTINGS,
    SMALL,
    Sandboxes,
    SandboxHost,
    Started,
    bash,
    beside,
    python,
    run,
)

VICTIM = """
import os, socket, time
open("/tmp/secret", "w").write("secret"); open("secret", "w").write("secret")
s = socket.socket(socket.AF_UNIX); s.bind("\\0ferryman-victim"); s.listen()
t = socket.socket(); t.bind(("127.0.0.1", 18765)); t.listen()
print("up", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end and not os.path.exists("stop"): time.sleep(0.01)
print("unharmed", flush=True)
"""
ATTACKER = """
import glob, os, signal, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
found = []
for pid in range(2, 5000):
    try: os.kill(pid, 0)
    except OSError: continue
    if pid not in (os.getpid(), os.getppid()): found.append(pid)
print("pids", found)
try: os.kill(-1, signal.SIGTERM)
except OSError as problem: print(problem)
try: socket.socket(socket.AF_UNIX).connect("\\0ferryman-victim"); print("LEAK unix")
except OSError as problem: print(problem.strerror)
try: socket.create_connection(("127.0.0.1", 18765), 1); print("LEAK tcp")
except OSError as problem: print(problem.strerror)
print("files", *(glob.glob(f"{place}/*") for place in ("/tmp", "/dev/shm", "/run", "/job")))
"""


def test_two_jobs_cannot_reach_each_other(host: SandboxHost) -> None:
    ended, victim, _, attacker, _ = host.do(beside, python(VICTIM), python(ATTACKER))
    assert (ended.reason, victim) == (None, "up\nunharmed\n")
    lines = attacker.splitlines()
    assert lines[0] == "pids []"
    assert lines[-1].startswith("files [] [] [] ['/job/")
    assert "secret" not in attacker
    assert attacker.count("Connection refused") == 2


def test_many_processes_in_one_sandbox_do_not_count_in_another(host: SandboxHost) -> None:
    many = "for i in $(seq 40); do sleep 20 & done; echo full; until [ -e stop ]; do :; done\n"
    more = bash("for i in $(seq 30); do sleep 0 & done; wait\n")
    _, full, ended, _, stderr = host.do(beside, bash(many), more)
    assert (full, stderr, ended.exit_code) == ("full\n", "", 0)


async def uids_and_groups(started: Started) -> tuple[set[int], list[Any]]:
    inits = (started.process.pid, *pidfd.descendants(started.process.pid))
    uids = {selftest.real_uid(pid) for pid in (*inits, started.outer)}
    return uids, [pidfd.status_field(pid, "Groups:") for pid in inits]


def test_no_process_of_a_job_is_root_on_the_host_or_has_its_groups(who: Who) -> None:
    def add_groups() -> None:
        if who == "root":
            os.setgroups([0, 4, 27])

    job = bash("echo hello\n", before_go=uids_and_groups)
    uids, groups = run(job, who, after=add_groups).extra
    assert len(uids) == 1
    assert 0 not in uids
    assert groups == [[], []]


async def uids_of_slots(sandboxes: Sandboxes) -> list[int | None]:
    sandbox = await sandboxes.of(bash(""))
    workspaces = [await sandbox.prepare(sandboxes.name(), slot, SMALL) for slot in (0, 1)]
    for workspace in workspaces:
        await workspace.destroy()
    return [workspace.uid for workspace in workspaces]


def test_two_slots_of_a_root_agent_have_different_uids(host: SandboxHost) -> None:
    first, second = host.do(uids_of_slots)
    assert (first, second) == (None, None) if host.who == "user" else first != second
    assert 0 not in (first, second)


async def shown_by_proc(started: Started) -> list[bytes]:
    """Command lines and environments of the sandbox's processes, as other users of the host can see
    them."""
    init = started.process.pid
    folders = [Path(f"/proc/{pid}") for pid in (started.outer, init, *pidfd.descendants(init))]
    return [(folder / name).read_bytes() for folder in folders for name in ("cmdline", "environ")]


def test_command_lines_and_environments_of_a_sandbox_show_nothing_private(host) -> None:
    """Of the agent's, and of the job's; pid 1 shows what bwrap was started with."""
    texts = host.run(bash("true\n", env={"JOBS_OWN": "whisper"}, before_go=shown_by_proc)).extra
    (outer, outer_environ), (init, init_environ) = texts[:2], texts[2:4]
    assert outer == init
    assert outer.split(b"\0")[0].endswith(b"/bwrap")
    assert {outer_environ, init_environ} <= {b"", b"PWD=/\0"}, "the shell that joins cgroups"
    assert [text for text in texts if b"HOSTILE_TOKEN" in text] == []
    private = (b"whisper", b"--bind", b"ferryman-")
    assert [text for text in texts[::2] if any(word in text for word in private)] == []


def test_the_agents_mounts_are_not_visible_on_the_host(root: Who) -> None:
    """And so a killed agent leaves none."""
    test = os.getpid()

    async def seen(started: Started) -> list[bool]:
        places = [Path(f"/proc/{pid}/mountinfo").read_text() for pid in ("self", test)]
        return ["/run/ferryman/" in place for place in places]

    assert run(bash("true\n", during=seen), root).extra == [True, False]


OTHER_USER = 299_999
"""A uid of the host that is neither the agent's nor a job's."""
OFFER = """
import os, shutil, socket, time
shutil.copy("/usr/bin/id", "id")
os.chmod("id", 0o4755)   # it runs with the job's uid
s = socket.socket(socket.AF_UNIX); s.bind("socket"); s.listen()
os.chmod("socket", 0o777); os.chmod(".", 0o777)
print("up", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end and not os.path.exists("stop"): time.sleep(0.01)
"""


def closed_to(uid: int, path: Path, host: int) -> bool:
    """Whether that uid cannot get at ``path``, where it is at all.

    Args:
        host: a process that has the mounts of the host, not those of the agent.
    """
    if os.geteuid() != 0:
        return any(not folder.stat().st_mode & 0o001 for folder in path.parents)
    enter = ["nsenter", f"--mount=/proc/{host}/ns/mnt", "--"]
    change = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    # a shell between: the program that setpriv itself starts is looked up with root's rights
    look = ["sh", "-c", 'stat "$0" >&2 || exit 126', str(path)]
    done = subprocess.run([*enter, *change, *look], capture_output=True, text=True, check=False)
    return done.returncode == 126


@pytest.mark.parametrize("settings", [SETTINGS, ON_DISK], ids=["images", "folders"])
def test_other_users_of_the_host_cannot_reach_a_jobs_files(agent, settings) -> None:
    """Else a user of the host and a bundle together are the agent: set-uid programs go out, and
    descriptors of the host's folders come in."""
    who, backend = agent
    test, home = os.getpid(), new_folder()
    home.chmod(0o755)  # as an operator's /var/lib may be

    async def try_to_open(started: Started) -> set[bool]:
        await started.says("up")
        assert started.workspace.folder is not None
        folders = {started.workspace.folder / "job", started.workspace.path}
        paths = [folder / name for folder in folders for name in ("id", "socket")]
        closed = {closed_to(OTHER_USER, path, test) for path in paths}
        started.let_go()
        return closed

    job = python(OFFER, during=try_to_open, settings=settings, backend=backend)
    try:
        outcome = run(job, who, home)
    finally:
        remove_tree(home)
    assert (outcome.ended.exit_code, outcome.extra) == (0, {True})
