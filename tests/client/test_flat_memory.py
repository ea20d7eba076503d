"""Memory stays flat, however large a bundle or a result is."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from aiohttp import web

from tests.client.fake_server import accepted

SIZE = 128 << 20
MOST_GROWTH = 32 << 20

CLIENT = """
import io, re, sys
from ferryman import SyncClient

class Nowhere(io.RawIOBase):
    def writable(self): return True
    def write(self, data): return len(data)

def peak():  # not ru_maxrss, which begins with that of the process that started this one
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s*([0-9]+) kB", status.read())[1]) * 1024

url, big = sys.argv[1:]
with SyncClient(url, user="ada") as client:
    client.submit({"run.sh": b"x"}, service="example")
    client.download(1, Nowhere())
    before = peak()
    client.submit({"run.sh": b"x", "big": big}, service="example")
    client.download(17, Nowhere())
print(peak() - before)
"""


async def take(request: web.Request) -> web.StreamResponse:
    async for _ in request.content.iter_any():
        pass
    return accepted().response()


async def send(request: web.Request) -> web.StreamResponse:
    size = SIZE if "/17/" in request.path else 1
    response = web.StreamResponse()
    response.content_type, response.content_length = "application/zip", size
    await response.prepare(request)
    for start in range(0, size, 1 << 20):
        await response.write(bytes(min(1 << 20, size - start)))
    await response.write_eof()
    return response


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc: flat memory is not proved")
async def test_large_bundles_and_results_pass_through_in_pieces(fake, tmp_path: Path):
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(SIZE)
    (tmp_path / "client.py").write_text(CLIENT)
    fake.parses = False
    fake.on("POST /upload", take).on("GET /api/v1/jobs/{id}/result", send)
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, str(tmp_path / "client.py"), fake.url, str(big)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await client.communicate()
    assert client.returncode == 0
    assert int(out) < MOST_GROWTH
