"""Both programs under a service manager: a real socket, real signals."""

from __future__ import annotations

import signal
import socket
import uuid
from pathlib import Path

import pytest

from tests.kit.programs import Program


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_it_says_when_it_is_ready_how_it_is_and_when_it_stops(tmp_path: Path, name: str) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(60)

        def until(line: str) -> str:
            while True:
                message = systemd.recv(4096).decode()
                if any(one.startswith(line) for one in message.splitlines()):
                    return message

        program = Program(name, tmp_path, uuid.uuid4().hex)
        program.prefix = ("env", f"NOTIFY_SOCKET={address}", "WATCHDOG_USEC=2000000")
        program.begin()
        assert program.process is not None
        until("READY=1")
        with socket.create_connection(("127.0.0.1", program.port), 20):  # it listens already
            pass
        assert "slots in use" in until("STATUS=")
        until("WATCHDOG=1")
        program.process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in until("RELOADING=1")
        until("READY=1")
        program.process.send_signal(signal.SIGTERM)
        until("STOPPING=1")
        assert program.process.wait(60) == 0
