"""Uploads as a test sends them: whole or in the middle, and what of them is stored."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from server.storage.scratch import FolderScratch
from tests.kit.raw_archives import FORM, text_part
from tests.kit.server_http import ServerClient
from tests.kit.waiting import until

FIELDS = [text_part("user_id", "7"), text_part("service", "my_service")]


async def post(
    caller: ServerClient, body: bytes, path: str = "/upload", **headers: str
) -> tuple[int, dict[str, str], dict[str, Any]]:
    asked = {"Content-Type": FORM, **headers}
    async with caller.session.post(
        f"{caller.url}{path}", data=io.BytesIO(body), headers=asked
    ) as answer:
        return answer.status, dict(answer.headers), await answer.json()


def left(data: Path, *kinds: str) -> set[Path]:
    """What is stored in a server's folder, and halves of it."""
    places = [data / kind for kind in kinds or ("staging", "bundles", "results")]
    return {path for place in places for path in place.rglob("*") if path.is_file()}


class Sender:
    """An upload whose sender stops in the middle."""

    def __init__(self, caller: ServerClient, head: bytes, query: str = "") -> None:
        self._caller, self._head, self._query = caller, head, query

    async def __aenter__(self) -> Sender:
        host, port = self._caller.url.removeprefix("http://").split(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        head = f"POST /upload{self._query} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {FORM}\r\n"
        self.writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        if self._head:
            await self.send(self._head)
        return self

    async def send(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self) -> tuple[int, dict[str, Any]]:
        """All is sent."""
        self.writer.write(b"0\r\n\r\n")
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, Any]]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), json.loads(await self.reader.readexactly(length))

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()


async def under_way(data: Path, count: int) -> None:
    """Until so many half uploads have been begun on the disk."""
    await until(lambda: len(list((data / "staging").iterdir())) >= count)


class Disk:
    """A simulated disk under the server's folder; the least that was ever free on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: Path, size: int) -> None:
        self.size, self.least, self.lock = size, size, threading.Lock()

        def free_bytes(_: FolderScratch) -> int:
            used = 0
            for path in data.rglob("*"):
                with suppress(FileNotFoundError):
                    used += path.stat().st_size if "ferryman.sqlite" not in path.name else 0
            with self.lock:
                self.least = min(self.least, self.size - used)
            return self.size - used

        monkeypatch.setattr(FolderScratch, "free_bytes", free_bytes)
