"""The jobs that are connected with a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from server.domain.batch import Batch
from server.domain.dependencies import Edge
from server.domain.graph import Graph, Link, Node, mermaid
from server.domain.jobs import Job
from server.stages import graph
from server.stages.graph import graph_of
from shared.principals import LOCAL
from shared.wire import JobState
from tests.support.jobs import job


class Jobs:
    def __init__(self, edges: Iterable[tuple[int, int]], **fields: Any) -> None:
        self.edges, self.fields = list(edges), fields
        self.batches: dict[int, Batch] = {}
        self.asked = 0

    async def get(self, job_id: int) -> Job:
        return job(id=job_id, **self.fields)

    async def several(self, ids: Sequence[int]) -> list[Job]:
        return [job(id=one) for one in ids]

    async def edges_of(self, ids: Sequence[int], limit: int) -> list[Edge]:
        self.asked += 1
        wanted = set(ids)
        found = [Edge(on, one, False) for on, one in self.edges if {on, one} & wanted]
        return found[:limit]

    async def batches_of(self, ids: Sequence[int]) -> dict[int, Batch]:
        return {one: self.batches[one] for one in ids if one in self.batches}

    async def active_children(self, parents: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(parents, 1)


async def found(jobs: Jobs, job_id: int) -> Graph:
    given: Any = jobs
    return await graph_of(given, LOCAL, job_id)


async def test_a_long_chain_is_followed_both_ways() -> None:
    chain = await found(Jobs((n, n + 1) for n in range(1, 100)), 50)
    assert [node.job.id for node in chain.nodes] == list(range(1, 101))
    assert len(chain.links) == 99
    assert not chain.truncated


@pytest.mark.parametrize("edges", [[(1, n) for n in range(2, 5_000)], "chain"])
async def test_a_large_graph_is_cut(edges: Any) -> None:
    jobs = Jobs([(n, n + 1) for n in range(1, 5_000)] if edges == "chain" else edges)
    cut = await found(jobs, 1)
    assert len(cut.nodes) == graph.MAX_NODES
    assert len(cut.links) == graph.MAX_NODES - 1
    assert cut.truncated
    assert jobs.asked <= graph.MAX_NODES
    assert "and more" in mermaid(cut)


async def test_a_child_leads_to_its_parent_and_a_parent_counts_its_children() -> None:
    jobs = Jobs([(7, 9)], parent_id=7)
    jobs.batches = {7: Batch(7, 4, made=4, completed=2, failed=1)}
    small = await found(jobs, 8)
    assert [(node.job.id, node.active) for node in small.nodes] == [(7, 1), (8, 0), (9, 0)]
    assert small.links == [Link(7, 8, "child"), Link(7, 9, "after")]
    text = mermaid(small)
    assert 'c7[["4 children<br/>2 completed, 1 failed, 0 cancelled"]]' in text
    assert "j7 -.-> j8" in text


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ('"]; click j1 "x', "#34;#93;#59; click j1 #34;x"),
        ("<script>&#35;", "#60;script#62;#38;#35;35#59;"),
        ("`**bold**`", "#96;#42;#42;bold#42;#42;#96;"),
        ("Schritt_1.2-ä 漢", "Schritt_1.2-ä 漢"),
        ("x" * 100, "x" * 60 + "#8230;"),
    ],
)
def test_names_mean_nothing_to_mermaid(name: str, label: str) -> None:
    text = mermaid(Graph([Node(job(id=1, name=name, state=JobState.QUEUED))], []))
    assert f'    j1["1 {label}<br/>Queued"]:::Queued\n' in text
