"""Every hostile bundle, straight through the sandbox, ends as tests/hostile/README.md says."""

from __future__ import annotations

import pytest

from tests.kit.real_sandbox import HOSTILE, MIB, SandboxHost, Who
from tests.sandbox.hostile_bundles import EXPECT


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
