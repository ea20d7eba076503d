"""Every hostile bundle, from upload to download, ends as tests/hostile/README.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.hostile_bundles import EXPECT, LOUD
from tests.kit.kernel_features import offers
from tests.kit.real_sandbox import (
    MIB,
    SMALL,
    Who,
)
from tests.kit.whole_system import WholeSystem, sandboxing, service, submit

SERVICES = service("small", SMALL) + service("loud", LOUD)


A_FEW = (
    *("spoof-status", "daemon-double-fork", "root-replace", "exit-137", "log-binary", "res-names"),
    *("mem-bomb", "disk-bomb", "log-flood", "wall-sleep", "res-sparse"),
)
"""One for each way in which an end, a result or a limit is reported."""


@pytest.mark.parametrize(
    "names", [A_FEW, pytest.param(tuple(EXPECT), marks=pytest.mark.slow)], ids=["a few", "all"]
)
def test_hostile_bundles_end_as_expected_on_their_way_through_the_system(
    who: Who, names: tuple[str, ...], open_folder: Path
) -> None:
    wrong: list[Exception] = []
    with WholeSystem(open_folder, who, SERVICES, sandboxing(slots=3)).running() as system:
        before = system.agent.peak_bytes()
        ids = {
            name: submit(system, job, "loud" if job.limits is LOUD else "small", name=name)
            for name, job in [(name, EXPECT[name][0]) for name in names]
        }
        for name, job_id in ids.items():
            job = system.user.wait(job_id, 120)
            try:
                outcome = system.outcome(job, open_folder / f"{name}.zip")
                assert [line for line in outcome.lines if "LEAK" in line] == []
                assert outcome.ended.reason not in ("agent_error", "sandbox_error"), job.message
                assert (outcome.enforcement["disk"] == "hard") == offers(who, "disk")
                EXPECT[name][1](outcome, who)
            except Exception as problem:  # noqa: BLE001  # all are reported together
                problem.add_note(f"{name}: {job.status} {job.reason} {job.message}")
                wrong.append(problem)
        assert system.agent.peak_bytes() - before < 64 * MIB
    if wrong:
        raise ExceptionGroup(f"{len(wrong)} of {len(ids)} bundles", wrong)
