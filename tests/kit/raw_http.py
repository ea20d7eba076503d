"""HTTP, byte by byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@contextlib.asynccontextmanager
async def listening(application: web.Application, **how: Any) -> AsyncIterator[int]:
    """On a free port of 127.0.0.1; that port."""
    runner = web.AppRunner(application, **how)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@dataclass
class Answer:
    """The first answer that came; ``100 Continue`` is one, too."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


async def send(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def holding(port: int, data: str) -> AsyncIterator[None]:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data.encode())
        await writer.drain()
        yield
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def ask(port: int, method: str, path: str, body: str = "", **headers: str) -> Answer:
    """One request on a connection of its own; a header's name has ``_`` for ``-``."""
    given = {"Host": f"127.0.0.1:{port}", "Connection": "close"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    if (body or method == "POST") and "Transfer-Encoding" not in given:
        given.setdefault("Content-Length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    raw = await send(port, f"{method} {path} HTTP/1.1\r\n{lines}\r\n{body}".encode("latin-1"))
    head, _, content = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    return Answer(int(first.split()[1]), found, content)
