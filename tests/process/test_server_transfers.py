"""A server that is stopped while a result is fetched slowly."""

from __future__ import annotations

import hashlib
import signal
import socket
from pathlib import Path

from tests.kit.program_pair import PATIENCE_S, Pair
from tests.kit.programs import until

SETTINGS = """
[services.example]
limits = { disk = "64MiB", memory = "64MiB" }
"""
RESULT = 16_000_000
"""More than the kernel holds on the way, so that the server is still sending."""


def test_sigterm_finishes_a_download_in_flight(tmp_path: Path) -> None:
    with Pair(tmp_path, SETTINGS).running() as pair:
        job = pair.submit(f"head -c {RESULT} /dev/urandom > big")
        pair.until(job, "Completed")
        server = pair.server.process
        assert server is not None
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            line.settimeout(PATIENCE_S)
            line.connect(("127.0.0.1", pair.server.port))
            line.sendall(
                f"GET /api/v1/jobs/{job}/result HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            head, _, body = line.recv(1 << 16).partition(b"\r\n\r\n")
            server.send_signal(signal.SIGTERM)
            until(lambda: "server.stopping" in pair.server.log, "it does not stop")

            def closed() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", pair.server.port)) != 0

            until(closed, "it still takes calls")
            assert server.poll() is None
            fields = {
                name.lower(): value.strip()
                for name, _, value in (one.partition(":") for one in head.decode().split("\r\n"))
            }
            digest, left = hashlib.sha256(body), int(fields["content-length"]) - len(body)
            while left:
                chunk = line.recv(1 << 16)
                assert chunk, f"{left} bytes are missing"
                digest.update(chunk)
                left -= len(chunk)
        assert fields["etag"] == f'"{digest.hexdigest()}"'
        assert server.wait(30) == 0
