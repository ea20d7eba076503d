"""The results of all children of a batch as one ZIP, made while it is sent."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.jobs import Job
from server.http.context import Context
from server.stages.merged_results import Part, merged_results

_LEFT_OUT: Final = "left-out.txt"


async def send_batch(request: web.Request, context: Context, parent: Job) -> web.StreamResponse:
    """What the children left, each below a folder of its name; a file at the root names those that
    have no result, or none that can be read.

    Raises:
        Refusal: as many as may be are being sent to the caller.
    """
    async with context.reads.batch_zips.turn():
        return await _send(request, context, parent)


async def _send(request: web.Request, context: Context, parent: Job) -> web.StreamResponse:
    results = await context.jobs.child_results(parent.id)
    parts = [Part(f"{name}/", result) for name, result in results if result is not None]
    missing = [f"{name}/: there is none" for name, result in results if result is None]
    note = _LEFT_OUT
    while any(note == name for name, _ in results):
        note = f"_{note}"
    async with merged_results(
        *(context.storage, context.scratch, parts),
        note=note,
        missing=missing,
        run=context.reads.run,
    ) as merged:
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/zip",
                "Content-Disposition": f'attachment; filename="batch-{parent.id}.zip"',
                "Content-Length": str(merged.size),
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            }
        )
        await response.prepare(request)
        if request.method != "HEAD":
            async for piece in merged:
                await response.write(piece)
        await response.write_eof()
    return response
