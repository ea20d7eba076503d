"""Attacks on what lies around the sandbox: queue, retries, receipts, restarts, cancelling."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ferryman import AlreadyEnded
from tests.kit.dev_program import born, descendants, of_jobs
from tests.kit.programs import until
from tests.kit.real_sandbox import (
    SMALL,
    Job,
    Who,
)
from tests.kit.whole_system import WholeSystem, sandboxing, service, submit

SERVICES = (
    service("small", SMALL)
    + service("again", SMALL, retries=1, retry_delays=[0], retry_on=["exit:3"])
    + service("infra", SMALL, infra_retries=1)
)


@contextmanager
def running(folder: Path, who: Who) -> Iterator[WholeSystem]:
    with WholeSystem(folder, who, SERVICES, sandboxing(slots=2)).running() as system:
        yield system


FORGED = """
cat >ferryman.json <<'X'
{"format": 1, "status": "Completed", "reason": null, "exit_code": 0, "job": 999}
X
echo '{"payload": {"id": 1, "status": "Completed"}}'
echo '::notice::done'; echo '{ "exit-code": 0 }'
echo 'agent.stopping' >&2
mkdir -p stdout.log stderr.log; echo mine >stdout.log/x
printf 'PK\\003\\004forged' >result.zip
exit 9
"""
CHANGES_ITSELF = """
if [ -e second ]; then echo 'LEAK: files of the first attempt'; fi
touch second
printf 'echo LEAK: the changed one; exit 0\\n' >run.sh.new; mv run.sh.new run.sh
chmod 777 run.sh; echo "attempt $FERRYMAN_ATTEMPT"
exit 3
"""
OUTLIVES = """
trap '' TERM HUP INT
for i in 1 2 3 4; do setsid bash -c 'trap "" TERM; while :; do sleep 0.1; done' & done
echo begun >begun; sync begun
while :; do sleep 0.1; done
"""


def test_a_job_cannot_forge_how_it_ended(who: Who, open_folder: Path) -> None:
    with running(open_folder, who) as system:
        forging = submit(system, Job({"run.sh": FORGED}), "small")
        changing = submit(system, Job({"run.sh": CHANGES_ITSELF}), "again")
        job = system.user.wait(forging, 60)
        assert (job.status, job.reason, job.exit_code) == ("Failed", "exit_code", 9)
        got = system.user.download(job.id, open_folder / "forged.zip", partial=True)
        names, receipt = contents(got.path)
        assert (receipt["job"], receipt["exit_code"], receipt["status"]) == (job.id, 9, "Failed")
        # what the job made is there, under its own names, and ours beside it
        assert {"ferryman.json", "stdout.log/x", "result.zip"} <= set(names)
        assert len(names) == len({name.casefold() for name in names})

        again = system.user.wait(changing, 60)
        assert (again.status, again.attempt, again.exit_code) == ("Failed", 2, 3)
        outcome = system.outcome(again, open_folder / "again.zip")
        assert outcome.stdout == "attempt 2\n"


def test_a_restart_in_the_middle_ends_what_will_not_end_and_tries_again(
    who: Who, open_folder: Path
) -> None:
    with running(open_folder, who) as system:
        job_id = submit(system, Job({"run.sh": OUTLIVES}), "infra")

        def began(attempt: int) -> bool:
            job = system.user.status(job_id)
            found = job.status == "Running" and job.attempt == attempt
            return found and "begun" in snapshot(system, job_id, open_folder)

        until(lambda: began(1), "it did not begin")
        before = descendants(system.agent.pid)
        assert len(before) >= 6
        system.agent.stop(signal.SIGKILL)
        system.agent.start()
        assert [pid for pid, birth in before.items() if born(pid) == birth] == []
        until(lambda: began(2), "it was not tried again", lambda: system.agent.log[-2000:])
        assert system.user.cancel(job_id).status in ("Killed", "Cancelled")
        until(lambda: of_jobs(system.agent.pid) == {}, "processes are left")


def snapshot(system: WholeSystem, job_id: int, folder: Path) -> list[str]:
    got = system.user.download(job_id, folder / f"{os.urandom(4).hex()}.zip", partial=True)
    with zipfile.ZipFile(got.path) as archive:
        return archive.namelist()


def test_cancels_that_race_with_every_step_leave_nothing(who: Who, open_folder: Path) -> None:
    with running(open_folder, who) as system:
        script = "trap 'echo no' TERM; (trap '' TERM; sleep 0.3 & wait) & sleep 0.2; wait\n"
        ends = set()
        for _ in range(12):
            job_id = submit(system, Job({"run.sh": script}), "small", user="mallory")
            with contextlib.suppress(AlreadyEnded):  # on a slow machine
                system.user.cancel(job_id)
            ends.add(system.user.wait(job_id, 60).status)
        assert ends <= {"Cancelled", "Completed"}
        until(lambda: of_jobs(system.agent.pid) == {}, "processes are left")
        hello = submit(system, Job({"run.sh": "echo hello\n"}), "small")
        assert system.user.wait(hello, 60).status == "Completed"


def contents(path: Path) -> tuple[list[str], dict[str, object]]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        receipts = [name for name in names if "ferryman" in name and name.endswith(".json")]
        reply = [json.loads(archive.read(name)) for name in receipts]
    (ours,) = [receipt for receipt in reply if "enforcement" in receipt]
    return names, ours
