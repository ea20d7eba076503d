"""The agent's routes, thin: read the request, call, shape the reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from client_agent.api.files import RunningLogs
from client_agent.api.requests import (
    ID,
    caller,
    id_of,
    int_param,
    json_answer,
    keyed,
    seconds_param,
    start_of,
    stream,
)
from client_agent.intake.admission import Admission
from client_agent.intake.submit import Intake
from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.errors import Refused
from client_agent.payloads.payload import ENDED, Payload
from client_agent.payloads.store import BATCH, Payloads
from client_agent.report.event_stream import EventStream, Wanted
from client_agent.report.health import CpuLoad, Health
from client_agent.run.runner import Runner
from client_agent.storage.folders import Folders
from shared.clock import Clock, wait_for
from shared.http import measured
from shared.http.authentication import PRINCIPAL
from shared.http.file_response import send_file
from shared.http.middleware import GATE
from shared.http.request_body import send_continue
from shared.http.request_log import UPLOADED_ID
from shared.ids import AttemptKey
from shared.wire import (
    LOG_SIZE,
    AgentHealth,
    AgentStatus,
    PayloadDoc,
    PayloadList,
    PayloadState,
    ResultInfo,
    Settled,
)

MAX_SNAPSHOTS: Final = 4
"""That are being written or read at once."""


class Snapshots:
    """The snapshots of one agent; :meth:`close` at the end."""

    def __init__(self, runner: Runner, folders: Folders, admission: Admission) -> None:
        self._runner, self._folders, self._admission = runner, folders, admission
        self._threads = ThreadPoolExecutor(MAX_SNAPSHOTS, "ferryman-snapshot")
        self._count = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def open(self, payload: Payload) -> AsyncIterator[Path]:
        """A snapshot's file, which is removed at the end.

        Raises:
            Refused: there are too many, or there is too little space, or it cannot be made.
        """
        if self._count >= MAX_SNAPSHOTS:
            raise Refused(503, "busy", f"{MAX_SNAPSHOTS} other snapshots are being made or read")
        self._admission.check_space(0)
        task, path = asyncio.current_task(), self._folders.staging()

        def check_space(size: int) -> None:
            """Called in the thread, before and while the ZIP is written."""
            if task is not None and task.cancelling():
                raise Refused(503, "abandoned", "nobody waits for this snapshot any more")
            self._admission.check_space(size)

        self._count += 1
        try:
            try:
                await self._runner.snapshot(payload, path, self._threads, check_space)
            except OSError as problem:
                why = f"the snapshot could not be made: {problem.strerror or problem}"
                raise Refused(503, "no_snapshot", why) from None
            yield path
        finally:
            self._count -= 1
            self._folders.remove_file(path)


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MAX_WAIT_S: Final = 60.0
_MAX_QUICK_MS: Final = 1_000
_PAGE_BYTES: Final = 1 << 18
"""Of a list. A server reads no page above 1 MiB, which is more than one payload has."""

_NO_STORE: Final = {"Cache-Control": "no-store"}


class Api:
    """The handlers."""

    def __init__(
        self,
        payloads: Payloads,
        outputs: LiveOutputs,
        runner: Runner,
        intake: Intake,
        health: Health,
        folders: Folders,
        snapshots: Snapshots,
        clock: Clock,
    ) -> None:
        self._payloads, self._outputs = payloads, outputs
        self._runner, self._intake = runner, intake
        self._health, self._folders, self._clock = health, folders, clock
        self._snapshots = snapshots
        self._logs = RunningLogs(payloads, outputs, folders, clock)
        self._cpu_load = CpuLoad()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.ping),
            web.get("/health", self.health),
            web.get("/livez", self.livez),
            web.get("/readyz", self.readyz),
            web.get("/load", self.load),
            web.get("/metrics", self.metrics),
            web.post("/submit", self.submit),
            web.get(f"/retrieve/{ID}", self.retrieve),
            web.get(f"/retrieve_partial/{ID}", self.retrieve_partial),
            web.post(f"/kill/{ID}", self.kill),
            web.get("/payloads", self.list),
            web.get(f"/payloads/{ID}/logs/{{stream:stdout|stderr}}", self.log, allow_head=False),
            web.post("/keys/{server}/{key}/settle", self.settle),
            web.get("/events", self.events),
        ]

    # -- the agent itself

    async def ping(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "pong"})

    async def health(self, request: web.Request) -> web.StreamResponse:
        health, healthy = await self._health.report(self._runner.running)
        if not request[PRINCIPAL].authenticated:  # names of folders are the operator's
            database = "ok" if health.database == "ok" else "error"
            health = AgentHealth(status=health.status, database=database, ready=health.ready)
        return json_answer(health, 200 if healthy else 503)

    async def livez(self, _: web.Request) -> web.StreamResponse:
        """Looks at neither disk nor database."""
        return web.json_response({"status": "ok"}, headers=_NO_STORE)

    async def readyz(self, _: web.Request) -> web.StreamResponse:
        """Whether bundles are taken now."""
        reasons = await self._health.unready()
        body = {"status": "error" if reasons else "ok", "reasons": [*reasons]}
        if not reasons:
            return web.json_response(body, headers=_NO_STORE)
        return web.json_response(body, status=503, headers={**_NO_STORE, "Retry-After": "10"})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return await measured.answer(request, request.app[measured.METRICS])

    async def load(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self._cpu_load.percent())

    # -- one payload

    async def submit(self, request: web.Request) -> web.StreamResponse:
        await send_continue(request)
        payload = await self._intake.submit(request, start_of(request))
        request[UPLOADED_ID] = payload.id
        return json_answer(payload.doc())

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        payload = await self._wait_for_end(request)
        if payload.state is PayloadState.COMPLETED and payload.outcome and payload.outcome.result:
            return await self._result(request, payload.id, payload.outcome.result)
        return json_answer(self._outputs.doc(payload))

    async def retrieve_partial(self, request: web.Request) -> web.StreamResponse:
        payload = await self._payloads.get(id_of(request))
        if payload.state is PayloadState.CLEANED:
            raise Refused(404, "cleaned", f"what payload {payload.id} left has been removed")
        if payload.outcome and payload.outcome.result:
            return await self._result(request, payload.id, payload.outcome.result)
        return await self._snapshot(request, payload)

    async def kill(self, request: web.Request) -> web.StreamResponse:
        payload_id = id_of(request)
        await self._payloads.check_caller(payload_id, caller(request))
        return json_answer((await self._runner.kill(payload_id)).doc())

    async def log(self, request: web.Request) -> web.StreamResponse:
        """What it has written so far to a log. Followed, the answer goes on as more is written."""
        offset = int_param(request, "offset")
        follow = request.query.get("follow") in ("1", "true")
        with request.app[GATE].long_poll(request) if follow else contextlib.nullcontext():
            payload = await keyed(request, self._payloads)
            if follow:
                payload = await self._logs.wait_for_launch(payload)
            with self._logs.open(payload, request.match_info["stream"]) as log:
                response = stream("application/octet-stream")
                response.headers[LOG_SIZE] = str(0 if log is None else log.size)
                await response.prepare(request)
                if log is not None:
                    async for data in log.chunks(offset, follow=follow):
                        await response.write(data)
                await response.write_eof()
        return response

    # -- for Ferryman servers

    async def settle(self, request: web.Request) -> web.StreamResponse:
        try:
            key = AttemptKey.parse(request.match_info["key"])
        except ValueError as problem:
            raise Refused(400, "invalid_key", str(problem)) from None
        server, kill = request.match_info["server"], request.query.get("kill") in ("1", "true")
        if not kill:  # a submit that is cancelled is refused, however much of it has arrived
            await self._intake.wait_for_submission(server, key)
        payload = await self._payloads.settle(server, key, start_of(request))
        if payload is not None and kill:
            payload = await self._runner.kill(payload.id)
        return json_answer(Settled(payload=None if payload is None else payload.doc()))

    async def list(self, request: web.Request) -> web.StreamResponse:
        """A page, in the order of changes. A payload that changes while pages are read may be in
        two of them: the later one counts."""
        seq = self._payloads.seq  # read before the rows, which may be newer, but not older
        rows = await self._payloads.changed_after(
            int_param(request, "after"), request.query.get("server")
        )
        page, size, last = list[PayloadDoc](), 0, None
        for row in rows:
            document = self._outputs.doc(row)
            size += len(document.model_dump_json())
            if page and size > _PAGE_BYTES:
                break
            page.append(document)
            last = row.changed
        goes_on = len(page) < len(rows) or len(rows) == BATCH
        return json_answer(PayloadList(seq=seq, payloads=page, next=last if goes_on else None))

    async def events(self, request: web.Request) -> web.StreamResponse:
        if (server := request.query.get("server")) is not None:
            await self._payloads.check_start(server, start_of(request))
        wanted = Wanted(
            int_param(request, "after"),
            request.query.get("server"),
            int_param(request, "results"),
            min(int_param(request, "quick_ms"), _MAX_QUICK_MS) / 1_000,
        )
        kind = "application/octet-stream" if wanted.results else "application/x-ndjson"
        response = stream(kind)
        await response.prepare(request)
        cpu_load = CpuLoad()  # of its own: it says what was between two lines

        def status() -> AgentStatus:
            return self._health.status(self._runner.running, cpu_load.percent_since())

        lines = EventStream(
            self._payloads, self._outputs, self._folders, self._clock, wanted, status
        ).lines()
        try:
            async for data in lines:
                await response.write(data)
            await response.write_eof()
        except ConnectionError:
            pass  # the server is gone; it asks again, with the number that it has seen
        finally:
            await lines.aclose()
        return response

    # -- helpers

    async def _wait_for_end(self, request: web.Request) -> Payload:
        """The payload; with ``?wait=`` once it has ended or these seconds have passed."""
        payload_id, seconds = id_of(request), min(seconds_param(request, "wait"), _MAX_WAIT_S)
        with self._payloads.wakeups.of(payload_id, end_only=True) as ended:
            payload = await self._payloads.get(payload_id)
            if seconds > 0 and payload.state not in ENDED:
                with request.app[GATE].long_poll(request):
                    await wait_for(ended, seconds, self._clock)
                payload = await self._payloads.get(payload_id)
        return payload

    async def _result(
        self, request: web.Request, payload_id: int, result: ResultInfo
    ) -> web.StreamResponse:
        row = (await self._payloads.results([payload_id])).get(payload_id)
        source = self._folders.result(payload_id) if row is None else row
        try:
            return await send_file(request, source, f"payload-{payload_id}.zip", result.sha256)
        except ConnectionError:
            raise
        except OSError:
            message = f"the result of payload {payload_id} is not here"
            raise Refused(404, "result_gone", message) from None

    async def _snapshot(self, request: web.Request, payload: Payload) -> web.StreamResponse:
        async with self._snapshots.open(payload) as path:
            return await send_file(request, path, f"payload-{payload.id}-partial.zip")
