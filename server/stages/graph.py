"""The jobs that are connected with a job by what they wait for."""

from __future__ import annotations

from typing import Final

from server.domain import access
from server.domain.graph import Graph, Link, Node
from server.domain.jobs import Job
from server.ports import Jobs
from server.stages.read import read_job
from shared.principals import Principal

MAX_NODES: Final = 300
_MAX_EDGES: Final = 2_000
"""Of each kind that are read at once."""


async def graph_of(jobs: Jobs, principal: Principal, job_id: int) -> Graph:
    """All that the job waits for, and all that waits for it, directly or not; the nearest
    ``MAX_NODES``. Children are counted at their parents; of a child there is the parent.

    Raises:
        NotAllowed, NoSuchJob
    """
    visible = access.visible(principal)
    first = await read_job(jobs, principal, job_id)
    found = {job_id: first}
    links = set[Link]()
    if first.parent_id is not None:
        links.add(Link(first.parent_id, job_id, "child"))
    frontier = [job_id]
    truncated = False
    while frontier:
        edges = await jobs.edges_of(frontier, _MAX_EDGES)
        truncated |= len(edges) >= _MAX_EDGES
        links |= {Link(e.on_id, e.job_id, "inputs" if e.inputs else "after") for e in edges}
        ends = {end for link in links for end in (link.source, link.target)}
        unknown = sorted(ends - found.keys())
        room = MAX_NODES - len(found)
        truncated |= len(unknown) > room
        seen = [job for job in await jobs.several(unknown[:room]) if visible.has(job)]
        found |= {job.id: job for job in seen}
        frontier = [job.id for job in seen]
        links = _within(links, found)
    return Graph(await _nodes(jobs, found), sorted(links, key=_order), truncated)


def _within(links: set[Link], found: dict[int, Job]) -> set[Link]:
    """What leads to jobs that are not there, or not to be seen, is left out."""
    return {link for link in links if link.source in found and link.target in found}


def _order(link: Link) -> tuple[int, int]:
    return link.source, link.target


async def _nodes(jobs: Jobs, found: dict[int, Job]) -> list[Node]:
    ids = sorted(found)
    batches = await jobs.batches_of(ids)
    active = await jobs.active_children([parent for parent, one in batches.items() if one.total])
    return [Node(found[one], batches.get(one), active.get(one, 0)) for one in ids]
