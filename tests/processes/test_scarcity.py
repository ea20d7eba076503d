"""A full disk, too few descriptors: agent and server say so, lose nothing, and recover."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
from pathlib import Path
from shutil import disk_usage

import pytest

from client_agent.sandbox.kernel import pidfd
from tests.kit.command_line import fresh
from tests.kit.disks import fill, mounted
from tests.kit.programs import Pair, call, until, upload
from tests.kit.raw_archives import FORM, file_part, form_of
from tests.processes.agent_process import agent
from tests.processes.sleeping import Sleep

UNPREPARED = {"FERRYMAN_AGENT__SANDBOXING__READ_ONLY": '["/usr/share:/share"]'}
"""No start is prepared for services with folders of the host. While one is started the agent is in
a namespace of few mounts, where a test does not find its data folder."""
KIND = {"Content-Type": FORM}
HELLO = {"run.sh": b"echo hello > out.txt\n"}


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


def logged(running, *events: str) -> str:
    """The next line of its log about one of these; "" where it ended without."""
    names = [f'"{event}"' for event in events]
    lines = running.process.stderr
    return next((line for line in lines if any(name in line for name in names)), "")


def test_on_a_full_disk_it_refuses_new_work_keeps_what_it_has_and_recovers(tmp_path, small):
    """What ends meanwhile is stored once there is space, if the database has none of its own."""
    given = {"FERRYMAN_AGENT__MIN_FREE": "0", **UNPREPARED}
    with agent(tmp_path, wrap=small, **given) as running:
        done = running.submit("1.1", HELLO)
        running.ended(done["id"])
        assert logged(running, "payload.ended")
        begun = running.submit("2.1", {"run.sh": b"sleep 1000; echo 42 >out\n"})
        sleeping = sleeping_below(running.until(begun["id"], "Running")["pid"])

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

        os.kill(sleeping, signal.SIGKILL)  # run.sh goes on
        assert logged(running, "payload.end_not_stored", "payload.ended")
        filler.unlink()
        ended = running.ended(begun["id"])
        assert ended["status"] in ("Completed", "Failed")
        assert ended["interrupted"] == (ended["status"] == "Failed")
        until(lambda: running.call("GET", "/health")[0] == 200, "it is still unhealthy")
        again = running.submit("3.1", HELLO)
        assert running.ended(again["id"])["status"] == "Completed"


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
        line = logged(running, "payload.not_packed", "payload.ended", "payload.broken")
        assert "payload.not_packed" in line
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


SETTINGS = """
[server]
min_free = "1MiB"
[services.example]
retries = 1
retry_on = ["exit:3"]
retry_delays = ["3s"]
limits = { disk = "32MiB", memory = "64MiB" }
"""


TOO_FULL = """
[server]
min_free = "4MiB"
[services.example]
limits = { disk = "64MiB", memory = "64MiB" }
"""
LARGE = 8 << 20


def test_while_results_find_no_room_it_says_so_everywhere_and_takes_no_new_work(tmp_path) -> None:
    """A disk that is not full, and too full for what comes. No job is lost."""
    pair, sleep = Pair(tmp_path, TOO_FULL), Sleep()
    with mounted(pair.server.data, "-t", "tmpfs", "-o", "size=64m", "tmpfs"), pair.running():
        filler = pair.server.data / "filler"
        filler.write_bytes(bytes(disk_usage(pair.server.data).free - (10 << 20)))
        large = pair.submit(f"{sleep} || true; head -c {LARGE} /dev/urandom > big")
        in_the_way = pair.submit("sleep 600", user="8")
        queued = pair.submit("echo small > small.txt", user="9")
        pair.until(large, "Running")
        sleep.end()
        pair.until(large, "Unknown")
        message = pair.json(f"/jobs/{large}")["message"]
        numbers = r"on the server's disk: 8\.\d MiB needed, \d\.\d MiB may be used"
        assert re.search(numbers, message), message
        cancelled = call(pair.server.url, "POST", f"/api/v1/jobs/{in_the_way}/cancel")
        assert cancelled[0] == 200  # a slot is free now, and nothing is sent
        pair.until(in_the_way, "Cancelled")

        def waiting(count: int) -> bool:
            line = f'ferryman_results_waiting{{reason="disk"}} {count}.0'
            return line in pair.get("/metrics").decode()

        until(lambda: waiting(1), "what was cancelled left is not stored, small as it is")
        status = pair.json("/status")
        assert (status["status"], status["queued"]) == ("error", 1)
        (trouble,) = [one for one in status["troubles"] if one["kind"] == "results_waiting"]
        assert "1 result waits for room on the server's disk" in trouble["message"]
        code, said = call(pair.server.url, "GET", "/health")
        assert (code, b"1 result waits" in said) == (503, True), said
        doctor = fresh("doctor", "--url", pair.server.url)
        assert (doctor.code, "1 result waits for room" in doctor.out) == (75, True), doctor
        waits = pair.json(f"/jobs/{queued}")
        assert (waits["status"], waits["queue"]["code"]) == ("Queued", "disk_full")
        assert "1 result waits for room" in waits["queue"]["reason"]
        code, refusal = upload(pair.server.url, {"run.sh": "true"})
        assert (code, "result waits for room" in refusal["message"]) == (507, True), refusal
        filler.unlink()
        for job in (large, queued):
            pair.until(job, "Completed")
            assert pair.json(f"/jobs/{job}")["attempt"] == 1
        assert len(pair.result(large).read("big")) == LARGE
        until(lambda: waiting(0), "a stored result waits")
        assert json.loads(pair.get("/health"))["status"] == "ok"


def test_a_job_whose_result_never_fits_can_be_cancelled_and_deleted_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    """The disk stays as full as it is."""
    pair = Pair(tmp_path, TOO_FULL)
    with mounted(pair.server.data, "-t", "tmpfs", "-o", "size=24m", "tmpfs"), pair.running():
        never = pair.submit("head -c 21000000 /dev/urandom > big")
        pair.until(never, "Failed")
        ended = pair.json(f"/jobs/{never}")
        assert (ended["reason"], ended["attempt"]) == ("results_limit", 1), ended
        assert "can never hold more than 20.0 MiB" in ended["message"]
        filler = pair.server.data / "filler"
        filler.write_bytes(bytes(disk_usage(pair.server.data).free - (9 << 20)))
        for method, path in (("POST", "/cancel"), ("DELETE", "")):
            job = pair.submit(f"head -c {LARGE} /dev/urandom > big")
            pair.until(job, "Unknown")
            status, _ = call(pair.server.url, method, f"/api/v1/jobs/{job}{path}")
            assert status in (200, 204)
            assert json.loads(pair.get("/health"))["status"] == "ok"
            pair.until(pair.submit("echo small"), "Completed")
        assert filler.exists()


def test_a_job_that_cannot_be_sent_for_want_of_descriptors_is_sent_later(tmp_path: Path) -> None:
    with Pair(tmp_path, SETTINGS).running() as pair:
        pid = pair.server.pid
        # Its bundle is too large to be in memory.
        job = pair.submit(f"exit 3 # {'x' * 70_000}")

        def queued_again() -> bool:
            now = pair.json(f"/jobs/{job}")
            return (now["status"], now["attempt"]) == ("Queued", 1)

        # The result of the first attempt is fetched, so to send the second is all that is left.
        until(queued_again, "it is not queued again", lambda: pair.server.log[-3_000:])
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        until(lambda: "job.not_sent" in pair.server.log, "it is not sent again")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        pair.until(job, "Failed")
        ended = pair.json(f"/jobs/{job}")
        attempts = 2 + pair.server.log.count("not_sent")
        assert (ended["reason"], ended["attempt"]) == ("exit_code", attempts), ended
