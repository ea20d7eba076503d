"""Every hostile bundle, straight through the sandbox, ends as tests/hostile/README.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.hostile_bundles import EXPECT
from tests.kit.real_sandbox import (
    HOSTILE,
    MIB,
    Who,
    run,
)


def test_every_hostile_bundle_has_an_expectation() -> None:
    assert set(EXPECT) == {path.name for path in HOSTILE.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", sorted(EXPECT))
def test_hostile_bundle(name: str, who: Who) -> None:
    job, check = EXPECT[name]
    outcome = run(job, who)
    leaks = [line for line in outcome.lines if "LEAK" in line]
    assert leaks == []
    assert outcome.ended.certain
    assert outcome.survivors == []
    assert outcome.left == [str(path) for path in map(Path, outcome.left) if path.name in TOPS]
    assert outcome.grown < 64 * MIB
    check(outcome, who)


TOPS = {"work", "images"}
