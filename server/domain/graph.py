"""What hangs on what: jobs and the jobs that they wait for, as a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from server.domain.batch import Batch
from server.domain.jobs import Job
from shared.wire import JobState

EdgeKind: TypeAlias = Literal["after", "inputs", "child"]

_NAME: Final = 60
"""Characters of a name that are shown."""
_PLAIN: Final = frozenset(" ._-")
_COLOURS: Final = {
    JobState.COMPLETED: "#d5f5d5",
    JobState.FAILED: "#ffd6d6",
    JobState.CANCELLED: "#e0e0e0",
    JobState.CLEANED: "#f2f2f2",
    JobState.UNKNOWN: "#ffedc2",
}
_UNDER_WAY: Final = "#d6e6ff"
_ARROWS: Final = {"after": "-->", "inputs": "-->|files|", "child": "-.->"}


@dataclass(frozen=True, slots=True)
class Node:
    """A job, and the children that it has."""

    job: Job
    batch: Batch | None = None
    active: int = 0
    """How many of its children are under way."""


@dataclass(frozen=True, slots=True)
class Link:
    """The target waits for the source, or is its child."""

    source: int
    target: int
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class Graph:
    """The jobs that are connected with one job.

    Attributes:
        nodes: by their numbers.
        truncated: there are more.
    """

    nodes: Sequence[Node]
    links: Sequence[Link]
    truncated: bool = False


def mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart, with an arrow to what waits."""
    return "\n".join(["flowchart LR", *_lines(graph), ""])


def _lines(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        job = node.job
        name = f" {_escaped(job.name)}" if job.name else ""
        yield f'    j{job.id}["{job.id}{name}<br/>{job.state}"]:::{job.state}'
        if node.batch is not None and node.batch.total:
            yield f'    c{job.id}[["{_children(node.batch)}"]]'
            yield f"    j{job.id} -.-> c{job.id}"
    for link in graph.links:
        yield f"    j{link.source} {_ARROWS[link.kind]} j{link.target}"
    if graph.truncated:
        yield '    more["and more"]'
    for state in sorted({node.job.state for node in graph.nodes}):
        yield f"    classDef {state} fill:{_COLOURS.get(state, _UNDER_WAY)}"


def _children(batch: Batch) -> str:
    counts = f"{batch.completed} completed, {batch.failed} failed, {batch.cancelled} cancelled"
    return f"{batch.total} children<br/>{counts}"


def _escaped(name: str) -> str:
    """Everything that may mean something to Mermaid or HTML, by its number."""
    cut = name if len(name) <= _NAME else f"{name[:_NAME]}…"
    return "".join(c if c.isalnum() or c in _PLAIN else f"#{ord(c)};" for c in cut)
