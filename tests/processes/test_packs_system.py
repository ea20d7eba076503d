"""An array whose children share sandbox starts, through the real server and a real agent."""

from __future__ import annotations

from pathlib import Path

from tests.kit.dev_program import descendants
from tests.kit.programs import until
from tests.kit.real_sandbox import SMALL, Job, Who
from tests.kit.whole_system import WholeSystem, sandboxing, service, submit

CHILDREN = 12
SCRIPT = """
echo "child $FERRYMAN_ARRAY_INDEX got $FERRYMAN_ARRAY_LINE"; ls /job; touch made /tmp/x
[ "$FERRYMAN_ARRAY_INDEX" != 5 ] || exit 7
"""


def test_children_of_a_packed_array_end_and_are_reported_as_any_other(
    open_folder: Path, who: Who
) -> None:
    lines = "".join(f"line {n}\n" for n in range(CHILDREN))
    job = Job({"run.sh": SCRIPT, "lines": lines})
    services = service("packed", SMALL, runs_per_user=50, max_runs=50, pack=8)
    with WholeSystem(open_folder, who, services, sandboxing(2)).running() as system:
        parent = submit(system, job, "packed", array_file="lines")
        ended = system.user.wait(parent)
        assert (ended.status, ended.reason) == ("Failed", "child_failed")
        children = list(system.user.jobs(parent=parent))
        assert len(children) == CHILDREN
        for child in children:
            index = child.array_index
            archive, receipt = system.result(child, open_folder / f"{child.id}.zip")
            with archive:
                log = archive.read("stdout.log").decode()
                assert "made" in archive.namelist()
            assert log == f"child {index} got line {index}\nlines\nrun.sh\n"
            assert receipt.job == child.id
            assert receipt.exit_code == (7 if index == 5 else 0)
        # a driver is kept for a moment, for a child that may come
        until(lambda: descendants(system.agent.pid) == {}, "the driver does not end")
