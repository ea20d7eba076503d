"""What hangs on what."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.graph import Node, mermaid
from server.http.context import Context
from server.http.documents import child_counts, shown
from server.http.parameter_types import choice
from server.http.params import job_id
from server.http.paths import JOB
from server.http.route import Route, json_answer
from server.stages.graph import graph_of
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.wire import GraphDoc, GraphEdge, GraphNode

_FORMATS: Final = ("json", "mermaid")


async def read(request: web.Request, context: Context) -> web.StreamResponse:
    """The jobs that a job waits for, and those that wait for it."""
    form = request.query.get("format", _FORMATS[0])
    if form not in _FORMATS:
        message = f"format should be json or mermaid, not {form[:32]!r}"
        raise BadField("format", "invalid_format", message)
    graph = await graph_of(context.jobs, request[PRINCIPAL], job_id(request))
    if form == "mermaid":
        return web.Response(text=mermaid(graph), content_type="text/plain", charset="utf-8")
    return json_answer(
        GraphDoc(
            nodes=[_node(node) for node in graph.nodes],
            edges=[
                GraphEdge(source=link.source, target=link.target, kind=link.kind)
                for link in graph.links
            ],
            truncated=graph.truncated,
        )
    )


def _node(node: Node) -> GraphNode:
    counts = None
    if node.batch is not None and node.batch.total:
        counts = child_counts(node.batch, node.active)
    return GraphNode(status=node.job.state, counts=counts, **shown(node.job, GraphNode))


ROUTES: Final = (
    Route(
        "GET",
        f"{JOB}/graph",
        Area.JOBS,
        read,
        {200: (wire.GraphDoc, "text/plain")},
        (),
        {"format": choice("mermaid: a diagram as text", _FORMATS, _FORMATS[0])},
    ),
)
