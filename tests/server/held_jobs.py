"""A job that an agent of the test's making holds, and streams that browsers follow."""

import io
import json
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.fake_agent import FakeAgent, HeldPayload, Served, left, serving
from tests.kit.server_http import ServerClient

SSE = {"Accept": "text/event-stream"}


class ShownJob:
    """A job, and who looks at it."""

    def __init__(self, caller: ServerClient, job_id: int) -> None:
        self.caller, self.job_id = caller, job_id

    @property
    def path(self) -> str:
        return f"/api/v1/jobs/{self.job_id}"

    async def get(
        self, what: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """What lies below the job; a header's name has ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.caller.url}{self.path}/{what}"
        async with self.caller.session.request(method, url, headers=named) as answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, found, await answer.read()

    async def document(self, what: str) -> dict[str, Any]:
        status, _, body = await self.get(what)
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    async def refused(self, what: str, **headers: str) -> tuple[int, str]:
        status, _, body = await self.get(what, **headers)
        return status, json.loads(body)["code"]


class Setting(ShownJob):
    """A job, and everybody around it."""

    def __init__(self, caller: ServerClient, agent: FakeAgent, job_id: int) -> None:
        super().__init__(caller, job_id)
        self.agent = agent

    def held(self, attempt: int = 1) -> HeldPayload:
        return self.agent.held(f"{self.job_id}.{attempt}")

    async def end(
        self,
        result: bytes | str,
        status: str = "Completed",
        attempt: int = 1,
        inputs: int = 0,
        **more: Any,
    ) -> None:
        """Its attempt has left this, and as many files of its bundle as they were sent; a text is
        what it wrote.
        """
        held = self.held(attempt)
        held.inputs = inputs
        held.status = status
        held.result = left(result, "") if isinstance(result, str) else result
        held.more = ({"exit_code": 3, "reason": "exit_code"} if status == "Failed" else {}) | more
        await self.agent.say(held)

    async def fail(self, result: bytes | str) -> None:
        """Its first attempt has failed, and the second one runs."""
        await self.end(result, "Failed")
        await self.agent.until(lambda: self.agent.starts[f"{self.job_id}.2"] == 1)
        await self.caller.job(self.job_id, until="Running")


@asynccontextmanager
async def running(
    where: Path | Served, extra: str = "", files: dict[str, bytes] | None = None, **fields: str
) -> AsyncIterator[Setting]:
    """A job that runs, on that server or in that folder on a new one with ``extra``."""
    async with AsyncExitStack() as stack:
        if isinstance(where, Path):
            agent = FakeAgent(ends="Running")
            caller = await stack.enter_async_context(serving(where, agent, extra=extra))
        else:
            caller, agent = where
        job_id = await caller.upload(files, "my_service", **fields)
        await caller.job(job_id, until="Running")
        yield Setting(caller, agent, job_id)
        if not isinstance(where, Path):
            await caller.session.post(f"{caller.url}/terminate/{job_id}")


@asynccontextmanager
async def ended(where: Path | Served, result: bytes | str, **more: Any) -> AsyncIterator[Setting]:
    async with running(where) as here:
        await here.end(result, **more)
        await here.caller.job(here.job_id)
        yield here


def zipped(files: Mapping[str, bytes], stored: tuple[str, ...] = ()) -> bytes:
    """A result with these files, of which some are not compressed, and with a folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("nothing/"), b"")
        for name, content in files.items():
            info = zipfile.ZipInfo(name, (2026, 3, 4, 5, 6, 8))
            info.compress_type = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
        logs = {"stdout": "stdout.log", "stderr": "stderr.log"}
        archive.writestr("ferryman.json", json.dumps({"logs": logs}))
    return packed.getvalue()


@dataclass
class Message:
    """One of a stream; ``event`` is empty for a comment."""

    id: int = 0
    event: str = ""
    data: Any = None


@asynccontextmanager
async def followed(
    caller: ServerClient, path: str, headers: Mapping[str, str] = SSE
) -> AsyncIterator[tuple[aiohttp.ClientResponse, AsyncIterator[Message]]]:
    async with caller.session.get(f"{caller.url}{path}", headers={**SSE, **headers}) as answer:
        yield answer, _messages(answer)


async def _messages(answer: aiohttp.ClientResponse) -> AsyncIterator[Message]:
    found = Message()
    async for line in answer.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        match name:
            case "id":
                found.id = int(value)
            case "event":
                found.event = value
            case "data":
                found.data = json.loads(value)
            case "":
                if found.event or line != b"\n":
                    yield found
                found = Message()


async def log_events(messages: AsyncIterator[Message]) -> list[tuple[int, str, Any]]:
    return [(one.id, one.event, one.data) async for one in messages if one.event]
