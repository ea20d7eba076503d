"""A whole agent in this process, reached over HTTP, on a fake sandbox and simulated time."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from client_agent import app
from client_agent.run.runner import EndRequests
from client_agent.settings.agent import AgentSection
from shared.wire import Limits, Order
from tests.kit.agent import LIMITS, SERVER, write_bundle
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeSandbox

HELLO: Mapping[str, bytes] = {"run.sh": b"echo hello\n"}


class AgentClient:
    """Speaks to one agent."""

    def __init__(
        self,
        url: str,
        http: aiohttp.ClientSession,
        sandbox: FakeSandbox,
        clock: SimClock,
        tmp: Path,
    ) -> None:
        self.url = url
        self.http, self.sandbox, self.clock, self._tmp = http, sandbox, clock, tmp

    def bundle(self, files: Mapping[str, bytes] = HELLO) -> tuple[bytes, str]:
        """Bytes of a sealed bundle and its digest."""
        path = self._tmp / "bundle"
        sealed = write_bundle(path, files)
        data = path.read_bytes()
        path.unlink()
        return data, sealed.digest

    def order(self, key: str, data: bytes, digest: str, **changed: Any) -> Order:
        given: dict[str, Any] = {
            "server": SERVER,
            "key": key,
            "service": "example",
            "user_id": "ann",
            "timeout_s": 60.0,
            "limits": LIMITS,
            "bundle_digest": digest,
            "bundle_size": len(data),
        }
        return Order(**(given | changed))

    async def submit(
        self, key: str = "1.1", files: Mapping[str, bytes] = HELLO, **changed: Any
    ) -> tuple[int, dict[str, Any]]:
        """As a Ferryman server does."""
        data, digest = self.bundle(files)
        return await self.post_order(self.order(key, data, digest, **changed), data)

    async def post_order(self, order: Order | str, data: bytes) -> tuple[int, dict[str, Any]]:
        text = order if isinstance(order, str) else order.model_dump_json()
        form = aiohttp.FormData()
        form.add_field("order", text)
        form.add_field(
            "bundle", io.BytesIO(data), filename="bundle.zip", content_type="application/zip"
        )
        return await self.call("POST", "/submit", data=form)

    async def submit_plain(self, files: Mapping[str, bytes]) -> tuple[int, dict[str, Any]]:
        """As a job-orchestrator server does: the part's name is the path."""
        form = aiohttp.FormData()
        for path, data in files.items():
            form.add_field(path, data, filename=path.rsplit("/", maxsplit=1)[-1])
        return await self.call("POST", "/submit", data=form)

    async def call(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and JSON body."""
        async with self.http.request(method, path, **more) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def zip(self, path: str) -> dict[str, bytes]:
        async with self.http.get(path) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "application/zip"
            with zipfile.ZipFile(io.BytesIO(await response.read())) as archive:
                return {name: archive.read(name) for name in archive.namelist()}

    async def ended(self, payload_id: int) -> dict[str, Any]:
        """The document of a payload once it has ended."""
        seen = 0
        async with self.http.get("/events") as response:
            async for line in response.content:
                event = json.loads(line)
                assert event["seq"] >= seen
                seen = event["seq"]
                payload = event["payload"]
                if payload and payload["id"] == payload_id and payload["ended_at"]:
                    return dict(payload)
        raise AssertionError(f"the stream ended before payload {payload_id}")

    async def completed(self, key: str = "1.1", files: Mapping[str, bytes] = HELLO) -> int:
        """A payload that ran to its end; its id."""
        status, payload = await self.submit(key, files)
        assert status == 200, payload
        (await self.sandbox.process(key)).finish()
        await self.ended(payload["id"])
        return int(payload["id"])


@contextlib.asynccontextmanager
async def calling(
    home: Path, clock: SimClock | None = None, asked: EndRequests | None = None, **settings: Any
) -> AsyncIterator[AgentClient]:
    """A started agent and a caller of it.

    Args:
        asked: how it is to end.
    """
    clock = clock or SimClock()
    data_dir = home / "agent"
    sandbox = FakeSandbox(clock, data_dir)
    given: dict[str, Any] = {
        "data_dir": data_dir,
        "port": 0,
        "name": "node-1",
        "slots": 2,
        "min_free": 0,
        "grace": 5.0,
    }
    section = AgentSection.model_validate(given | settings)
    tokens = section.all_tokens()
    headers = {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
    async with app.running(section, clock, sandbox, asked) as agent:
        base = f"http://127.0.0.1:{agent.port}"
        async with aiohttp.ClientSession(base, headers=headers) as http:
            yield AgentClient(base, http, sandbox, clock, home)


__all__ = ["HELLO", "LIMITS", "AgentClient", "Limits", "calling"]
