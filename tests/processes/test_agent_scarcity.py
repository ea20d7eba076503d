"""A full disk, too few descriptors: the agent says so, keeps what it has, and recovers."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from client_agent.sandbox.kernel import pidfd
from tests.kit.disks import fill
from tests.kit.programs import until
from tests.kit.raw_archives import FORM, file_part, form_of
from tests.processes.agent_process import agent

UNPREPARED = {"FERRYMAN_AGENT__SANDBOXING__READ_ONLY": '["/usr/share:/share"]'}
"""No start is prepared for services with folders of the host. While one is started the agent is in
a namespace of few mounts, where a test does not find its data folder."""
KIND = {"Content-Type": FORM}
HELLO = {"run.sh": b"echo hello > out.txt\n"}
WAIT = {"run.sh": b"echo begun > begun.txt; until [ -e /job/never ]; do sleep 1000; done\n"}


@pytest.fixture
def small(tmp_path):
    """A command that gives what it executes a data folder of 64 MiB."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mounts without root: what a full disk does to an agent is not proved")
    data = tmp_path / "agent"
    data.mkdir()
    script = f'mount -t tmpfs -o size=64m none "{data}" && exec "$@"'
    return ("unshare", "-m", "sh", "-c", script, "sh")


def data_folder(running, tmp_path: Path) -> Path:
    """The data folder in the agent's own mount namespace."""
    return Path(f"/proc/{running.process.pid}/root{tmp_path}/agent")


def test_on_a_full_disk_it_refuses_new_work_keeps_what_it_has_and_recovers(tmp_path, small):
    given = {"FERRYMAN_AGENT__MIN_FREE": "0", **UNPREPARED}
    with agent(tmp_path, wrap=small, **given) as running:
        done = running.submit("1.1", HELLO)
        running.ended(done["id"])
        begun = running.submit("2.1", WAIT)
        running.until(begun["id"], "Running")

        folder = data_folder(running, tmp_path)
        filler = fill(folder)
        body = form_of(file_part("run.sh", b"x" * 100_000))
        status, refusal = running.call("POST", "/submit", body, **KIND)
        assert status == 507
        assert "space" in refusal["message"]
        assert running.call("GET", "/health")[0] == 503
        staging = folder / "staging"  # it goes on trying whether it can write
        until(lambda: list(staging.iterdir()) == [], "what it cannot store is left")
        assert running.call("GET", f"/retrieve/{done['id']}")[0] == 200

        filler.unlink()
        assert running.call("POST", f"/kill/{begun['id']}")[1]["status"] == "Killed"
        until(lambda: running.call("GET", "/health")[0] == 200, "it is still unhealthy")
        again = running.submit("3.1", HELLO)
        assert running.ended(again["id"])["status"] == "Completed"


def test_an_end_on_a_full_disk_is_stored_once_there_is_space(tmp_path, small):
    with agent(tmp_path, wrap=small, FERRYMAN_AGENT__MIN_FREE="0", **UNPREPARED) as running:
        begun = running.submit("1.1", {"run.sh": b"sleep 1; echo 42 > out\n"})
        running.until(begun["id"], "Running")
        filler = fill(data_folder(running, tmp_path))
        assert running.process.stderr is not None
        while "payload.end_not_stored" not in (line := running.process.stderr.readline()):
            assert line, "the agent ended"
            if '"payload.ended"' in line:  # the database found room in its own pages
                break
        filler.unlink()
        ended = running.ended(begun["id"])
        assert ended["status"] in ("Completed", "Failed")
        assert ended["interrupted"] == (ended["status"] == "Failed")
        assert running.call("GET", "/health")[0] == 200


def test_min_free_is_kept_free(tmp_path, small):
    with agent(tmp_path, wrap=small, FERRYMAN_AGENT__MIN_FREE="1GiB") as running:
        status, health = running.call("GET", "/health")
        assert status == 200  # what it has can be fetched
        assert "must stay free" in health["message"]
        assert not health["ready"]  # so it gets no new jobs
        status, refusal = running.call("POST", "/submit", form_of(), **KIND)
        assert (status, refusal["code"]) == (507, "disk_full")


@pytest.mark.parametrize("prepared", [True, False])
def test_a_shortage_of_descriptors_costs_no_result_and_leaks_nothing(tmp_path, prepared):
    """The agent can open nothing from when its job runs until it is to be collected."""
    given = {} if prepared else UNPREPARED
    with agent(tmp_path, wrap=(), **given) as running:
        payload = running.submit("1.1", {"run.sh": b"sleep 1000; echo 42 >out.txt\n"})
        begun = running.until(payload["id"], "Running")
        sleeping = sleeping_below(begun["pid"])  # Running is stored before run.sh starts
        held = Path(f"/proc/{running.process.pid}/fd")
        before = len([*held.iterdir()])
        limits = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(sleeping, signal.SIGKILL)  # run.sh goes on
        assert running.process.stderr is not None
        while "payload.not_packed" not in (line := running.process.stderr.readline()):
            assert "payload.ended" not in line
            assert "payload.broken" not in line
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, limits)
        assert running.ended(payload["id"])["status"] == "Completed"
        assert running.files(payload["id"])["out.txt"] == b"42\n"
        again = running.submit("2.1", HELLO)
        assert running.ended(again["id"])["status"] == "Completed"
        if not prepared:
            until(lambda: len([*held.iterdir()]) <= before, "descriptors are left")
        work = tmp_path / "agent" / "work"
        until(
            lambda: all(folder.name.startswith("ahead-") for folder in work.iterdir()),
            "the folders of attempts are not removed",
        )


def sleeping_below(init: int) -> int:
    """Pid of the ``sleep`` below the sandbox's init, once it is there."""

    def there() -> list[int]:
        found = []
        for pid in pidfd.descendants(init):
            with contextlib.suppress(FileNotFoundError):
                if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                    found.append(pid)
        return found

    until(there, "run.sh does not sleep")
    return there()[0]
