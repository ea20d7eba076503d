"""Addresses, certificates and whom a client acts as."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ferryman import BadArgument, Client, JobState, SyncClient, Unreachable
from tests.kit.certificates import Authority, Certificate, authority
from tests.kit.dev_program import environment
from tests.unit.ferryman.fake_server import RecordingServer, answer, job, serving


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def host(ca: Authority) -> Certificate:
    return ca.issue("host")


@pytest.fixture(scope="module")
def caller(ca: Authority) -> Certificate:
    return ca.issue("caller")


@asynccontextmanager
async def encrypted(host: Certificate, callers: Authority | None = None) -> AsyncIterator[str]:
    """A server with this certificate; with ``callers`` it asks for theirs."""

    async def health(_: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    app = web.Application()

    async def job_17(_: web.Request) -> web.StreamResponse:
        return answer(job(JobState.COMPLETED))

    app.router.add_get("/health", health)
    app.router.add_get("/api/v1/jobs/17", job_17)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(host.cert, host.key)
    if callers is not None:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(callers.cert)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=tls)
    try:
        yield f"https://127.0.0.1:{server.port}"
    finally:
        await server.close()


async def test_an_own_ca_is_trusted_and_no_other_one(ca, host, caller, tmp_path):
    other = authority(tmp_path, "other")
    async with encrypted(host) as url:
        async with Client(url, ca_file=ca.cert) as client:
            assert (await client.health()).status == "ok"
        for other_client in (
            Client(url, retry_for=0),
            Client(url, retry_for=0, ca_file=other.cert),
        ):
            async with other_client as client:
                with pytest.raises(Unreachable, match=r"cannot be verified.*FERRYMAN_CA_FILE"):
                    await client.health()


@pytest.mark.parametrize(
    ("trusts", "code", "said"), [(True, 0, "Completed"), (False, 69, "verified")]
)
async def test_a_command_trusts_what_the_host_trusts(ca, host, trusts, code, said):
    async with encrypted(host) as url:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "ferryman", "status", "17", "--url", url),
            env=environment() | {"SSL_CERT_FILE": str(ca.cert if trusts else host.cert)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await command.communicate()
    assert (command.returncode, said in out.decode()) == (code, True), out


async def test_a_client_certificate_says_who_calls(ca, host, caller, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(caller.cert.read_bytes() + caller.key.read_bytes())
    async with encrypted(host, ca) as url:
        for more in (
            {"client_cert": caller.cert, "client_key": caller.key},
            {"client_cert": str(both)},
        ):
            async with Client(url, ca_file=ca.cert, **more) as client:
                assert (await client.health()).status == "ok"
        async with Client(url, ca_file=ca.cert, retry_for=0) as client:
            with pytest.raises(Unreachable):
                await client.health()


async def test_commands_take_certificates_from_the_environment(
    ca, host, caller, ferryman, monkeypatch
):
    async with encrypted(host, ca) as url:
        monkeypatch.setenv("FERRYMAN_CA_FILE", str(ca.cert))
        monkeypatch.setenv("FERRYMAN_CLIENT_CERT", str(caller.cert))
        assert (await ferryman("status", 17, "--url", url)).code == 2
        monkeypatch.setenv("FERRYMAN_CLIENT_KEY", str(caller.key))
        done = await ferryman("status", 17, "--url", url)
        assert (done.code, done.err) == (0, "")
        monkeypatch.delenv("FERRYMAN_CA_FILE")
        assert (await ferryman("status", 17, "--url", url)).code == 69
    plain = await ferryman("status", 17, "--url", "http://127.0.0.1:9")
    assert plain.code == 69, "certificates are for https only"


def test_certificates_that_cannot_be_used_are_refused_at_once(ca, host, caller, tmp_path):
    locked = ca.issue("locked", "a password")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    url = "https://127.0.0.1:5000"
    for why, more in (
        ("No such file", {"ca_file": tmp_path / "absent.pem"}),
        ("not a file with", {"ca_file": text}),
        ("client_key without", {"client_key": caller.key}),
        ("not a file with", {"client_cert": caller.cert}),
        ("does not belong", {"client_cert": caller.cert, "client_key": host.key}),
        ("not a file with", {"client_cert": locked.cert, "client_key": locked.key}),
    ):
        with pytest.raises(BadArgument, match=why):
            Client(url, **more)
    with pytest.raises(BadArgument, match="are for https://"):
        Client("http://127.0.0.1:5000", ca_file=ca.cert)


@pytest.mark.parametrize(
    ("why", "url", "more"),
    [
        ("such as http://", "http://host:99999", {}),
        ("such as http://", "http://:5000", {}),
        ("end before the", "http://host/?token=t", {}),
        ("give the token as", "http://ada:secret@host", {}),
        ("no header can carry", "http://host", {"headers": {"X-Own": "a\r\nX-Other: b"}}),
        ("no header can carry", "http://host", {"headers": {"X Own": "a"}}),
        ("no token has", "http://host", {"token": "t\r"}),
        ("name of a user", "http://host", {"act_as": "ada\n"}),
        ("a proxy's URL", "http://host", {"proxy": "proxy:3128"}),
    ],
)
def test_what_cannot_be_right_is_refused_before_any_request(why, url, more):
    with pytest.raises(BadArgument, match=why) as caught:
        Client(url, **more)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_an_option_that_there_is_not_is_an_error(kind):
    with pytest.raises(TypeError, match="no option 'tokn'"):
        kind("http://host", tokn="t")


async def test_a_portal_acts_as_its_user_in_every_request():
    take = RecordingServer()
    seen: list[str | None] = []

    async def upload(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Ferryman-Act-As"))
        return await take(request)

    run = {"run.sh": b"echo hi"}
    async with serving(("POST", "/upload", upload)) as url:
        async with Client(url, token="t", act_as="ada") as client:
            await client.submit(run, service="example")
        async with Client(url, token="t") as client:
            await client.submit(run, service="example")
    assert seen == ["ada", None]
    assert [one.fields.get("user_id") for one in take.uploads] == ["ada", None]
    assert [one.query.get("user_id") for one in take.uploads] == ["ada", None]
