"""The parts of ``make bench`` that measure the sandbox and the collector still measure what they
say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_agent.sandbox.base import SandboxSettings
from client_agent.sandbox.bubblewrap import command
from client_agent.sandbox.bubblewrap.root_tree import RootTree
from client_agent.sandbox.kernel import pidfd
from tests.bench import bare, chain, collecting, layers, many_mounts, starting, tokens
from tests.bench.table import Row

FDS = command.Descriptors(args=3, job=4, status=5, seccomp=6)
TREE = RootTree(Path("/tree"), ("/usr",), mounted=True, signature=())
GIVEN = command.bwrap_options(FDS, {}, root=TREE, scratch=1)


def _values(rows: list[Row]) -> dict[str, Row]:
    return {row.what: row for row in rows}


@pytest.mark.slow
async def test_each_layer_of_a_start_is_measured_and_ours_is_held_against_the_chain(
    tmp_path: Path,
) -> None:
    rows = await layers.layers(tmp_path, 1)
    found = _values(rows)
    assert found[f"start: {layers.BASH}"].ratio == 1
    assert {f"start: {name}" for name in ("bwrap, minimal", layers.CHAIN)} <= found.keys()
    assert found["our whole cycle"].target == "≤ 1.3"
    assert "start up to the gate" in found["our whole cycle"].ours


@pytest.mark.slow
async def test_starts_are_counted_with_and_without_each_part(tmp_path: Path) -> None:
    rows = await starting.starts(tmp_path, 2, 1)
    names = [row.what.rpartition(": ")[2] for row in rows]
    assert {"our whole cycle", starting.ALL, "without net", "bash run.sh"} <= set(names)
    assert all(row.ours.count(" / ") == len(starting.AT_ONCE) - 1 for row in rows)
    assert [row.ratio for row in rows if row.what.endswith(starting.ALL)] == [1]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_a_start_is_measured_with_and_without_more_mounts(tmp_path: Path) -> None:
    rows = await many_mounts.many_mounts(tmp_path, 2, 1)
    assert len(rows) == 2
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
    assert not any(str(tmp_path) in line for line in Path("/proc/mounts").read_text().splitlines())


@pytest.mark.slow
async def test_the_collector_is_measured_on_one_large_file_and_on_many(tmp_path: Path) -> None:
    found = _values(await collecting.collecting(tmp_path, 8 << 20, 1200, 1))
    assert len(found) == 4
    assert all("MB/s" in row.ours for what, row in found.items() if "memory" not in what)
    assert all(row.target == "≤ 64 MiB" for what, row in found.items() if "memory" in what)


def test_parts_are_left_out_with_their_values_and_nothing_else() -> None:
    kept = starting.without("--unshare-net", pairs=["--hostname"])(GIVEN)
    assert set(GIVEN) - set(kept) == {"--unshare-net", "--hostname", "sandbox"}
    assert len(kept) == len(GIVEN) - 3
    assert starting.without()(GIVEN) == GIVEN


async def test_a_plain_chain_leaves_no_zombie_behind(tmp_path: Path) -> None:
    async with bare.sandbox(tmp_path, SandboxSettings(disk_images=False)) as found:
        plain, workspace = await chain.chained(found, "chain")
        try:
            before = pidfd.descendants(os.getpid())
            for _ in range(5):
                plain.whole()
            assert pidfd.descendants(os.getpid()) == before
        finally:
            await workspace.destroy()


def test_a_start_that_fails_is_no_measurement() -> None:
    with pytest.raises(AssertionError, match="no such luck"):
        chain.timed(["/bin/sh", "-c", "echo no such luck >&2; exit 3"])


async def test_the_check_of_a_token_is_measured_alone_and_in_requests(tmp_path: Path) -> None:
    check, request = await tokens.tokens(tmp_path, 30, 50, 5)
    assert "µs, p99" in check.ours
    assert check.what == "a token's check, of 30 tokens"
    assert request.ratio is not None
