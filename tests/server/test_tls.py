"""TLS on server and agent, by certificate files, with client certificates where they are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web
from structlog.testing import capture_logs

from client_agent import app
from client_agent.settings.agent import AgentSection
from server.settings import load
from shared.clock import RealClock, yield_to_loop
from shared.http.connections import connection_limits
from shared.http.listener import Listener
from shared.http.protocol import Deadlines
from shared.http.settings import HttpSection
from shared.http.sockets import listen
from shared.settings.base import SettingsError
from tests.kit import raw_http
from tests.kit.certificates import Authority, Certificate, authority
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.server_http import ServerClient, hosted


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def host(ca: Authority) -> Certificate:
    return ca.issue("host")


@pytest.fixture(scope="module")
def caller(ca: Authority) -> Certificate:
    return ca.issue("caller")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Of another CA, with the same name."""
    return authority(tmp_path_factory.mktemp("other"), "other").issue("caller")


def trusting(ca: Authority, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.cert)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


@contextlib.asynccontextmanager
async def answering(connections: int = 1024, **keys: Any) -> AsyncIterator[tuple[int, Any]]:
    """A listener with these settings that says hello; its port and what it encrypts with."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    application = web.Application()
    application.router.add_get("/", hello)
    sock, tls = listen("127.0.0.1", 0), HttpSection(**keys).tls()
    limits = replace(connection_limits(1024), connections=connections)
    listener = Listener(application, sock, limits, Deadlines(head_s=30), 0.1, tls)
    port = sock.getsockname()[1]
    await listener.start()
    try:
        yield port, tls
    finally:
        await listener.close()


async def said(port: int, context: ssl.SSLContext) -> str:
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.get(f"https://127.0.0.1:{port}/") as answer,
    ):
        return await answer.text()


async def test_a_caller_that_trusts_the_ca_is_answered(ca, host):
    async with answering(tls_cert=host.cert, tls_key=host.key) as (port, _):
        assert await said(port, trusting(ca)) == "hello"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await said(port, ssl.create_default_context())


async def test_certificate_and_key_may_be_in_one_file(ca, host, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(host.cert.read_bytes() + host.key.read_bytes())
    async with answering(tls_cert=both) as (port, _):
        assert await said(port, trusting(ca)) == "hello"


async def test_with_a_client_ca_only_callers_with_its_certificate_are_answered(
    ca, host, caller, stranger
):
    keys = {"tls_cert": host.cert, "tls_key": host.key, "tls_client_ca": ca.cert}
    async with answering(**keys) as (port, _):
        assert await said(port, trusting(ca, caller)) == "hello"
        with capture_logs() as logs:
            for context in (trusting(ca), trusting(ca, stranger)):
                with pytest.raises(aiohttp.ClientError):
                    await said(port, context)
        assert [line["event"] for line in logs] == ["tls.failed"]  # one a second at most


async def test_plain_http_is_answered_with_a_sentence(host):
    async with answering(tls_cert=host.cert, tls_key=host.key) as (port, _):
        with capture_logs() as logs:
            answer = await raw_http.ask(port, "POST", "/upload", "x" * 1000)
    assert answer.status == 400
    assert b"https://" in answer.body
    (line,) = [one for one in logs if one["event"] == "tls.failed"]
    assert answer.headers["x-request-id"] == line["request_id"]


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "a part of a handshake"])
async def test_connections_without_a_handshake_are_closed_for_others(ca, host, sent):
    async with answering(8, tls_cert=host.cert, tls_key=host.key) as (port, _):
        async with AsyncExitStack() as stack:
            for _ in range(8):
                await stack.enter_async_context(raw_http.holding(port, sent.decode("latin-1")))
            for _ in range(3):
                assert await asyncio.wait_for(said(port, trusting(ca)), 10) == "hello"
        for _ in range(20):  # none of those that ended is counted for ever
            assert await asyncio.wait_for(said(port, trusting(ca)), 10) == "hello"


async def test_new_files_are_used_for_new_connections(ca, host, tmp_path, stranger):
    used = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    for path, content in ((used.cert, host.cert), (used.key, host.key)):
        path.write_bytes(content.read_bytes())
    async with answering(tls_cert=used.cert, tls_key=used.key) as (port, tls):
        used.key.write_bytes(stranger.key.read_bytes())
        with capture_logs() as logs:
            tls.reload()
        assert logs[0]["event"] == "tls.not_reloaded"
        assert "tls_key" in logs[0]["why"]
        assert await said(port, trusting(ca)) == "hello"
        used.cert.write_bytes(stranger.cert.read_bytes())
        tls.reload()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await said(port, trusting(ca))


def test_files_that_cannot_be_used_are_named(ca, host, stranger, tmp_path):
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no certificate\n")
    locked = ca.issue("locked", password="secret")
    for keys, words in (
        ({"tls_key": host.key}, "tls_key is of use only with tls_cert"),
        ({"tls_client_ca": ca.cert}, "tls_client_ca is of use only with tls_cert"),
        ({"tls_cert": tmp_path / "no.pem"}, "no.pem: No such file"),
        ({"tls_cert": host.cert}, "host.pem: not a certificate with the key in the same file"),
        ({"tls_cert": nothing, "tls_key": host.key}, "nothing.pem: not a certificate"),
        ({"tls_cert": host.cert, "tls_key": stranger.key}, "is not the key of tls_cert"),
        ({"tls_cert": locked.cert, "tls_key": locked.key}, "locked.key is encrypted"),
        (
            {"tls_cert": host.cert, "tls_key": host.key, "tls_client_ca": nothing},
            "tls_client_ca .*nothing.pem: no certificate",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            HttpSection(**keys)


def test_files_for_an_agent_that_cannot_be_used_are_named(ca, caller, tmp_path):
    for lines, words in (
        ('url = "http://node:9000"\nca_file = "CA"', "only with an https:// address"),
        ('url = "https://node:9000"\nclient_key = "KEY"', "client_key is of use only with"),
        ('url = "https://node:9000"\nca_file = "/nowhere"', "ca_file /nowhere: No such file"),
    ):
        file = tmp_path / "ferryman.toml"
        given = lines.replace("CA", str(ca.cert)).replace("KEY", str(caller.key))
        file.write_text(f"[agents.node]\n{given}\n")
        with pytest.raises(SettingsError, match=words):
            load.read(file, {}, {})


@contextlib.asynccontextmanager
async def encrypted(
    folder: Path, agent_lines: str, tls: dict[str, Path], **agent_keys: Any
) -> AsyncIterator[ServerClient]:
    """Server and agent, both with TLS."""
    clock, home = RealClock(), folder / "agent"
    given: dict[str, Any] = {"data_dir": home, "port": 0, "slots": 1, "min_free": 0}
    section = AgentSection.model_validate(given | agent_keys)
    async with AsyncExitStack() as stack:
        sandbox = FakeSandbox(clock, home)
        sandbox.script = FakeProcess.finish
        running = app.running(section, clock, sandbox)
        agent = await stack.enter_async_context(running)
        file = folder / "ferryman.toml"
        file.write_text(f'[agents.node]\nurl = "https://127.0.0.1:{agent.port}"\n{agent_lines}\n')
        flags = {"server": {"data_dir": folder / "server"} | tls}
        yield await hosted(load.read(file, flags, {}), stack)


async def test_a_job_goes_its_way_with_tls_on_every_connection(tmp_path, ca, host, caller):
    own = {"tls_cert": host.cert, "tls_key": host.key}
    lines = f'ca_file = "{ca.cert}"\nclient_cert = "{caller.cert}"\nclient_key = "{caller.key}"'
    async with encrypted(tmp_path, lines, own, **own, tls_client_ca=ca.cert) as client:
        assert client.url.startswith("https://")
        job = await client.job(await client.upload(service="example"))
        assert job["status"] == "Completed"
        with structlog.testing.capture_logs() as lines_logged:
            await client.server.reload.run_once()
        assert [one["file"] for one in lines_logged if one["event"] == "tls.reloaded"] == [
            str(caller.cert)
        ]


@pytest.mark.parametrize(
    ("trusts", "has", "words"),
    [
        ("stranger", True, "its certificate is not trusted"),
        ("ca", False, "server disconnected"),  # asyncio closes before its alert is sent
    ],
)
async def test_without_the_right_certificates_it_is_silence(
    tmp_path, ca, host, caller, stranger, trusts, has, words
):
    trusted = ca.cert if trusts == "ca" else stranger.cert.with_name("other.pem")
    lines = f'ca_file = "{trusted}"\n'
    if has:
        lines += f'client_cert = "{caller.cert}"\nclient_key = "{caller.key}"'
    own = {"tls_cert": host.cert, "tls_key": host.key}
    async with encrypted(tmp_path, lines, {}, **own, tls_client_ca=ca.cert) as client:
        job = await client.upload(service="example")
        (node,) = client.server.clients.values()
        async with asyncio.timeout(10):
            while node.unreachable == node.not_reached_yet:
                await yield_to_loop()
        assert words in node.trouble.lower()
        assert (await client.get(f"/api/v1/jobs/{job}"))[2].count(b'"Queued"')
