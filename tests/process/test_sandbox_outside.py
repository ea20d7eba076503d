"""What other users of the host can reach of a job."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.none import NoSandbox
from tests.kit.real_sandbox import SETTINGS, Job, Started, Who, can, run
from tests.kit.waiting import until

OTHER_USER = 299_999
"""A uid of the host that is neither the agent's nor a job's."""

OFFER = """
import os, shutil, socket, time
shutil.copy("/usr/bin/id", "id")
os.chmod("id", 0o4755)   # it runs with the job's uid
s = socket.socket(socket.AF_UNIX); s.bind("socket"); s.listen()
os.chmod("socket", 0o777); os.chmod(".", 0o777)
print("up", flush=True)
end = time.monotonic() + 10
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


async def shown_by_proc(started: Started) -> list[bytes]:
    """Command lines and environments of the sandbox's processes, as other users of the host can see
    them."""
    inits = [started.process.pid, *pidfd.descendants(started.process.pid)]
    fields = pidfd.stat_fields(started.process.pid)
    assert fields is not None
    folders = [Path(f"/proc/{pid}") for pid in (int(fields[1]), *inits)]
    return [(folder / name).read_bytes() for folder in folders for name in ("cmdline", "environ")]


def test_command_lines_and_environments_of_a_sandbox_show_nothing_private(who: Who) -> None:
    """Of the agent's, and of the job's; pid 1 shows what bwrap was started with."""
    os.environ["HOSTILE_TOKEN"] = "the agent's own secret"
    job = Job({"run.sh": "true\n"}, env={"JOBS_OWN": "whisper"}, before_go=shown_by_proc)
    texts = run(job, who).extra
    (outer, outer_environ), (init, init_environ) = texts[:2], texts[2:4]
    assert outer == init
    assert outer.split(b"\0")[0].endswith(b"/bwrap")
    assert {outer_environ, init_environ} <= {b"", b"PWD=/\0"}, "the shell that joins cgroups"
    for text in texts:
        assert b"HOSTILE_TOKEN" not in text
    for text in texts[::2]:
        assert b"whisper" not in text
        assert b"--bind" not in text
        assert b"ferryman-" not in text


@pytest.mark.parametrize(
    ("who", "backend"), [("root", "bubblewrap"), ("user", "bubblewrap"), ("root", "none")]
)
@pytest.mark.parametrize("images", [True, False])
def test_other_users_of_the_host_cannot_reach_a_jobs_files(
    who: Who, images: bool, backend: str, tmp_path: Path
) -> None:
    """Else a user of the host and a bundle together are the agent: set-uid programs go out, and
    descriptors of the host's folders come in."""
    if not can(who):
        pytest.skip("not root: what holds for an agent that root starts is not proved")
    home = tmp_path / "home"
    home.mkdir()
    for folder in (home, *home.parents):
        if folder.stat().st_uid == os.geteuid() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o055)  # as an operator's /var/lib may be

    test = os.getpid()

    async def try_to_open(started: Started) -> list[bool]:
        await until(lambda: "up" in started.stdout)
        folders = {home / "agent/work/attempt/job", started.workspace.path}
        closed = [
            closed_to(OTHER_USER, p / name, test) for p in folders for name in ("id", "socket")
        ]
        os.close(os.open("stop", os.O_CREAT | os.O_WRONLY, dir_fd=started.workspace.fd))
        return closed

    job = Job({"run.sh": "exec python3 p.py\n", "p.py": OFFER}, during=try_to_open)
    job = replace(job, settings=replace(SETTINGS, disk_images=images))
    if backend == "none":
        job = replace(job, backend=NoSandbox)
    outcome = run(job, who, home)
    assert outcome.ended.exit_code == 0
    assert set(outcome.extra) == {True}
