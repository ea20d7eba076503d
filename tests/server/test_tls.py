"""TLS on server and agent, by certificate files, with client certificates where they are wanted."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from client_agent import app
from client_agent.settings.agent import AgentSection
from server.settings import load
from shared.clock import RealClock
from shared.http import connections
from shared.http.settings import HttpSection
from shared.settings.base import SettingsError
from tests.kit import raw_http
from tests.kit.certificates import Authority, Certificate, authority
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.server_http import ServerClient, driving, hosted
from tests.kit.waiting import until


class Keys:
    """A CA, a host and a caller of it; and a stranger of another CA, with the caller's name."""

    def __init__(self, folder: Path) -> None:
        (folder / "other").mkdir()
        self.ca, self.other = authority(folder), authority(folder / "other", "other")
        self.host, self.caller = self.ca.issue("host"), self.ca.issue("caller")
        self.stranger = self.other.issue("caller")
        self.own: dict[str, Any] = {"tls_cert": self.host.cert, "tls_key": self.host.key}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def trusting(ca: Authority, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.cert)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


@contextlib.asynccontextmanager
async def answering(folder: Path, **settings: Any) -> AsyncIterator[int]:
    async with driving(folder, FakeOrchestrator(), **settings) as caller:
        yield int(caller.url.rpartition(":")[2])


async def said(port: int, context: ssl.SSLContext) -> int:
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.get(f"https://127.0.0.1:{port}/livez") as answer,
    ):
        return answer.status


async def test_whoever_trusts_the_ca_is_answered_and_plain_http_gets_a_sentence(
    keys, tmp_path, monkeypatch
):
    """New files that do not fit are used for no connection."""
    used = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    shutil.copy(keys.host.cert, used.cert)
    shutil.copy(keys.host.key, used.key)
    given: dict[str, Any] = {"tls_cert": used.cert, "tls_key": used.key}
    tls = HttpSection(**given).tls()
    assert tls is not None
    monkeypatch.setattr(HttpSection, "tls", lambda _: tls)
    async with answering(tmp_path, **given) as port:
        assert await said(port, trusting(keys.ca)) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await said(port, ssl.create_default_context())
        with capture_logs() as logs:
            answer = await raw_http.ask(port, "POST", "/upload", "x" * 1000)
        assert (answer.status, b"https://" in answer.body) == (400, True)
        (line,) = [one for one in logs if one["event"] == "tls.failed"]
        assert answer.headers["x-request-id"] == line["request_id"]
        shutil.copy(keys.stranger.key, used.key)
        with capture_logs() as logs:
            tls.reload()
        (line,) = [one for one in logs if one["event"] == "tls.not_reloaded"]
        assert "tls_key" in line["why"]
        assert await said(port, trusting(keys.ca)) == 200


async def test_with_a_client_ca_only_callers_with_its_certificate_are_answered(keys, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(keys.host.cert.read_bytes() + keys.host.key.read_bytes())
    async with answering(tmp_path, tls_cert=both, tls_client_ca=keys.ca.cert) as port:
        assert await said(port, trusting(keys.ca, keys.caller)) == 200
        with capture_logs() as logs:
            for context in (trusting(keys.ca), trusting(keys.ca, keys.stranger)):
                with pytest.raises(aiohttp.ClientError):
                    await said(port, context)
        failed = [line["event"] for line in logs if line["event"].startswith("tls.")]
        assert failed == ["tls.failed"]  # one a second at most


async def test_connections_without_a_handshake_are_closed_for_others(keys, tmp_path, monkeypatch):
    """They send nothing, or a part of one."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    async with answering(tmp_path, **keys.own) as port:
        for sent in ("", "\x16\x03\x01"):
            async with AsyncExitStack() as stack:
                for _ in range(8):
                    await stack.enter_async_context(raw_http.holding(port, sent))
                for _ in range(3):
                    assert await asyncio.wait_for(said(port, trusting(keys.ca)), 10) == 200
            for _ in range(20):  # none of those that ended is counted for ever
                assert await asyncio.wait_for(said(port, trusting(keys.ca)), 10) == 200


def test_files_that_cannot_be_used_are_named(keys, tmp_path):
    nothing, host = tmp_path / "nothing.pem", keys.host
    nothing.write_text("no certificate\n")
    locked = keys.ca.issue("locked", password="secret")
    for given, words in (
        ({"tls_key": host.key}, "tls_key is of use only with tls_cert"),
        ({"tls_client_ca": keys.ca.cert}, "tls_client_ca is of use only with tls_cert"),
        ({"tls_cert": tmp_path / "no.pem"}, "no.pem: No such file"),
        ({"tls_cert": host.cert}, "host.pem: not a certificate with the key in the same file"),
        ({"tls_cert": nothing, "tls_key": host.key}, "nothing.pem: not a certificate"),
        ({"tls_cert": host.cert, "tls_key": keys.stranger.key}, "is not the key of tls_cert"),
        ({"tls_cert": locked.cert, "tls_key": locked.key}, "locked.key is encrypted"),
        (keys.own | {"tls_client_ca": nothing}, "tls_client_ca .*nothing.pem: no certificate"),
    ):
        with pytest.raises(ValueError, match=words):
            HttpSection(**given)
    file = tmp_path / "ferryman.toml"
    for lines, words in (
        (f'url = "http://a:9"\nca_file = "{keys.ca.cert}"', "only with an https:// address"),
        (f'url = "https://a:9"\nclient_key = "{keys.caller.key}"', "client_key is of use only"),
        ('url = "https://a:9"\nca_file = "/nowhere"', "ca_file /nowhere: No such file"),
    ):
        file.write_text(f"[agents.node]\n{lines}\n")
        with pytest.raises(SettingsError, match=words):
            load.read(file, {}, {})


@contextlib.asynccontextmanager
async def encrypted(
    folder: Path, keys: Keys, agent_lines: str, tls: dict[str, Path]
) -> AsyncIterator[ServerClient]:
    """A server, and an agent with TLS that wants a client's certificate."""
    folder.mkdir()
    clock, home = RealClock(), folder / "agent"
    given: dict[str, Any] = {"data_dir": home, "port": 0, "slots": 1, "min_free": 0}
    section = AgentSection.model_validate(given | keys.own | {"tls_client_ca": keys.ca.cert})
    async with AsyncExitStack() as stack:
        sandbox = FakeSandbox(clock, home)
        sandbox.script = FakeProcess.finish
        agent = await stack.enter_async_context(app.running(section, clock, sandbox))
        file = folder / "ferryman.toml"
        file.write_text(f'[agents.node]\nurl = "https://127.0.0.1:{agent.port}"\n{agent_lines}\n')
        flags = {"server": {"data_dir": folder / "server"} | tls}
        yield await hosted(load.read(file, flags, {}), stack)


async def test_a_job_goes_its_way_with_tls_on_every_connection_and_the_right_certificates(
    tmp_path, keys
):
    shows = f'client_cert = "{keys.caller.cert}"\nclient_key = "{keys.caller.key}"\n'
    trusts = f'ca_file = "{keys.ca.cert}"\n'
    async with encrypted(tmp_path / "right", keys, trusts + shows, keys.own) as client:
        assert client.url.startswith("https://")
        job = await client.job(await client.upload(service="example"))
        assert job["status"] == "Completed"
        with capture_logs() as logs:
            await client.server.context.reload()
        loaded = [one["file"] for one in logs if one["event"] == "tls.reloaded"]
        assert loaded == [str(keys.caller.cert)]
    for name, lines, words in (
        ("other", f'ca_file = "{keys.other.cert}"\n{shows}', "its certificate is not trusted"),
        ("none", trusts, "server disconnected"),  # asyncio closes before its alert is sent
    ):
        async with encrypted(tmp_path / name, keys, lines, {}) as client:
            job_id = await client.upload(service="example")
            (node,) = client.server.context.fleet.clients.values()
            await until(lambda: node.unreachable != node.not_reached_yet)  # noqa: B023
            assert words in node.trouble.lower()
            assert (await client.get(f"/api/v1/jobs/{job_id}"))[2].count(b'"Queued"')
