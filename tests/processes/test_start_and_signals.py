"""How the programs take a hangup, a defect of their own, and an address of version 6."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from client_agent import app
from client_agent.settings.agent import AgentSection
from server import lifecycle
from server.settings.tables import ServerSettings
from shared.clock import RealClock
from shared.http.sockets import CannotListen
from tests.kit.certificates import Certificate, authority
from tests.kit.clock import SimClock
from tests.kit.dev_program import environment
from tests.kit.fake_sandbox import FakeSandbox
from tests.kit.programs import Program, until


@pytest.mark.parametrize(
    ("name", "said"),
    [("server", "settings.reloaded"), ("client_agent", "settings.reloaded")],
)
def test_a_hangup_ends_nothing(tmp_path: Path, name: str, said: str) -> None:
    program = Program(name, tmp_path, uuid.uuid4().hex)
    program.start()
    assert program.process is not None
    for times in (1, 2):
        program.process.send_signal(signal.SIGHUP)
        until(lambda n=times: program.log.count(said) == n, "it says nothing", lambda: program.log)
    assert program.kill(signal.SIGTERM) == 0


def test_a_hangup_makes_the_server_read_its_settings_again(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    secret = "[services.a.env]\nKEY = '{}'\n"
    file.write_text("[services.a]\nmax_runs = 1\n" + secret.format("hunter2"))
    program = Program("server", tmp_path, uuid.uuid4().hex, "--config", str(file))
    program.start()
    assert program.process is not None

    def reload(text: str, said: str, times: int) -> None:
        file.write_text(text)
        assert program.process is not None
        program.process.send_signal(signal.SIGHUP)
        until(lambda: program.log.count(said) == times, "it says nothing", lambda: program.log)

    def service(name: str) -> dict[str, Any]:
        line = http.client.HTTPConnection("127.0.0.1", program.port, timeout=20)
        with contextlib.closing(line):
            line.request("GET", f"/api/v1/services/{name}")
            return dict(json.loads(line.getresponse().read()))

    changed = "[services.a]\nmax_runs = 7\ntimeout = '2h'\n" + secret.format("hunter3")
    server = "[server]\nmax_files = 9\npublic_url = '/x'\n"
    reload(f"{server}[services.b]\n{changed}", '"settings.reloaded"', 1)
    assert (service("a")["max_runs"], service("a")["timeout_s"]) == (7, 7_200.0)
    assert service("b")["source"] == "file"
    lines = {
        (one["event"], one["key"]): (one["old"], one["new"])
        for one in map(json.loads, program.log.splitlines())
        if one.get("event", "").startswith("setting.")
    }
    assert lines == {
        ("setting.changed", "services.a.max_runs"): ("1", "7"),
        ("setting.changed", "services.a.timeout"): ("1h", "2h"),
        ("setting.changed", "services.a.env.KEY"): ("(secret)", "(secret)"),
        ("setting.changed", "services.b"): (None, "added"),
        ("setting.not_applied", "server.max_files"): ("10000", "9"),
        ("setting.not_applied", "server.public_url"): (None, "/x"),
    }
    reload("[services.a]\nmax_rans = 9\n", '"settings.not_reloaded"', 1)
    assert "did you mean max_runs?" in program.log
    assert service("a")["max_runs"] == 7
    reload(changed, '"settings.reloaded"', 2)
    assert service("b")["code"] == "service_not_found"
    assert "hunter" not in program.log
    assert program.kill(signal.SIGTERM) == 0


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_a_hangup_makes_a_program_read_its_certificate_again(tmp_path: Path, name: str) -> None:
    used = Certificate(tmp_path / "used.pem", tmp_path / "used.key")
    table = "server" if name == "server" else "agent"
    file = tmp_path / "ferryman.toml"
    file.write_text(f'[{table}]\ntls_cert = "{used.cert}"\ntls_key = "{used.key}"\n')
    program = Program(name, tmp_path, uuid.uuid4().hex, "--config", str(file))

    def renew(folder: str) -> ssl.SSLContext:
        (tmp_path / folder).mkdir()
        ca = authority(tmp_path / folder)
        new = ca.issue("host")
        used.cert.write_bytes(new.cert.read_bytes())
        used.key.write_bytes(new.key.read_bytes())
        return ssl.create_default_context(cafile=ca.cert)

    def health(trusted: ssl.SSLContext) -> int:
        line = http.client.HTTPSConnection("127.0.0.1", program.port, timeout=20, context=trusted)
        with contextlib.closing(line):
            line.request("GET", "/")
            return line.getresponse().status

    first = renew("first")
    program.start()
    assert health(first) == 200
    second = renew("second")
    with pytest.raises(ssl.SSLCertVerificationError):
        health(second)
    assert program.process is not None
    program.process.send_signal(signal.SIGHUP)
    until(lambda: '"tls.reloaded"' in program.log, "it says nothing", lambda: program.log)
    assert health(second) == 200
    until(lambda: '"settings.reloaded"' in program.log, "it says nothing", lambda: program.log)
    assert program.log.count("its content has changed") == 2
    assert "setting.not_applied" not in program.log
    assert '"https://127.0.0.1:' in program.log
    assert program.kill(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("module", "given"), [(lifecycle, ServerSettings()), (app, AgentSection(sandbox="none"))]
)
async def test_a_hangup_is_survived_before_anybody_can_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, given: Any
) -> None:
    seen: list[object] = []

    def listen(*_: object) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise CannotListen

    def open_sandbox(*_: object) -> Any:  # a real one would leave its mounts to this process
        return contextlib.nullcontext(FakeSandbox(SimClock(), tmp_path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "listen", listen)
    monkeypatch.setattr(app, "open_sandbox", open_sandbox)
    with pytest.raises(CannotListen):
        await (
            lifecycle.serve(given, None)
            if module is lifecycle
            else app.serve(given, RealClock(), print)
        )
    assert len(seen) == 1
    assert seen != [signal.SIG_DFL]


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_a_defect_at_the_start_shows_where_it_is(tmp_path: Path, name: str) -> None:
    """A ValueError of ours is no mistake in the settings."""
    where = {"server": "server.lifecycle", "client_agent": "client_agent.app"}[name]
    program = (
        f"import sys, runpy, {where} as module\n"
        "async def broken(*_, **__): raise ValueError('a defect')\n"
        "module.serve = broken\n"
        f"sys.argv = ['{name}', '--data-dir', '{tmp_path}']\n"
        f"runpy.run_module('{name}', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment(),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" in done.stderr
    assert "ValueError: a defect" in done.stderr


@pytest.mark.parametrize("given", ["no-address", "ftp://x"])
def test_a_wrong_address_of_the_agent_is_a_mistake_in_a_word(tmp_path: Path, given: str) -> None:
    program = Program("server", tmp_path, uuid.uuid4().hex, "--agent-url", given)
    program.begin()
    assert program.process is not None
    assert program.process.wait(30) == 2
    assert "Traceback" not in program.log
    assert "pydantic" not in program.log
    assert f"--agent-url: '{given}'" in program.log


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_it_listens_on_version_6_and_says_where(tmp_path: Path, name: str) -> None:
    if not _has_v6():
        pytest.fail("this machine has no ::1: listening on IPv6 is not proved")
    program = Program(name, tmp_path, uuid.uuid4().hex, "--host", "::1")
    program.begin()
    until(lambda: "listening" in program.log, "it does not listen", lambda: program.log)
    assert f"http://[::1]:{program.port}" in program.log
    line = http.client.HTTPConnection("::1", program.port, timeout=20)
    line.request("GET", "/health")  # with `Host: [::1]:port`
    answer = line.getresponse()
    assert (answer.status, json.loads(answer.read())["status"]) == (200, "ok")
    line.close()
    assert program.kill(signal.SIGTERM) == 0


def _has_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
