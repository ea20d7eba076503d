"""The documents about jobs that hang on each other."""

from __future__ import annotations

from typing import Literal

from ferryman.models import ChildCounts, Wire
from ferryman.states import JobState, Reason


class GraphNode(Wire):
    """A job in a graph."""

    id: int
    name: str | None = None
    status: JobState
    user_id: str
    service: str
    reason: Reason | None = None
    counts: ChildCounts | None = None
    """Of a parent: its children."""


class GraphEdge(Wire):
    """The target waits, or has waited, for the source; or it is its child."""

    source: int
    target: int
    kind: Literal["after", "inputs", "child"]
    """``inputs``: the target gets the result files of the source."""


class GraphDoc(Wire):
    """The jobs that are connected with a job by what they wait for."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    truncated: bool = False
    """There are more."""
