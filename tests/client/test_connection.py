"""Addresses, certificates, proxies, headers and whom a client acts as."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ferryman import BadArgument, Client, JobState, SyncClient, Unreachable
from tests.client.fake_server import HERE, SCRIPT, FakeServer, accepted, doc, job
from tests.kit.certificates import Authority, Certificate, authority
from tests.kit.command_line import fresh
from tests.kit.each import each

OK = doc({"status": "ok", "database": "ok"})


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


@asynccontextmanager
async def encrypted(host: Certificate, callers: Authority | None = None) -> AsyncIterator[str]:
    """A server with this certificate; with ``callers`` it asks for theirs."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(host.cert, host.key)
    if callers is not None:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(callers.cert)
    server = FakeServer().on("GET /health", OK).on(f"GET {HERE}", doc(job(JobState.COMPLETED)))
    async with server.serving(ssl=tls):
        yield server.url.replace("localhost", "127.0.0.1")


async def test_an_own_ca_is_trusted_and_a_client_certificate_says_who_calls(ca, ferryman, tmp_path):
    host, caller, other = ca.issue("host"), ca.issue("caller"), authority(tmp_path, "other")
    two = tmp_path / "both.pem"
    two.write_bytes(caller.cert.read_bytes() + caller.key.read_bytes())
    mine: list[Any] = [
        {"client_cert": caller.cert, "client_key": caller.key},
        {"client_cert": str(two)},
    ]
    trusts: list[Any] = [{}, {"ca_file": other.cert}]
    async with encrypted(host) as url:
        async with Client(url, ca_file=ca.cert) as client:
            assert (await client.health()).status == "ok"
        for more in trusts:
            async with Client(url, retry_for=0, **more) as client:
                with pytest.raises(Unreachable, match=r"cannot be verified.*FERRYMAN_CA_FILE"):
                    await client.health()
        for trusted, code, said in ((ca, 0, "Completed"), (host, 69, "verified")):
            words, by = ("status", "17", "--url", url), {"SSL_CERT_FILE": str(trusted.cert)}
            done = await asyncio.to_thread(fresh, *words, **by)
            assert (done.code, said in done.out + done.err) == (code, True), done
    async with encrypted(host, ca) as url:
        for more in mine:
            async with Client(url, ca_file=ca.cert, **more) as client:
                assert (await client.health()).status == "ok"
        async with Client(url, ca_file=ca.cert, retry_for=0) as client:
            with pytest.raises(Unreachable):
                await client.health()
        given = {"FERRYMAN_CLIENT_CERT": str(caller.cert), "FERRYMAN_CA_FILE": str(ca.cert)}
        key = {"FERRYMAN_CLIENT_KEY": str(caller.key)}
        assert (await ferryman("status", 17, "--url", url, **given)).code == 2
        done = await ferryman("status", 17, "--url", url, **given, **key)
        assert (done.code, done.err) == (0, "")
        del given["FERRYMAN_CA_FILE"]
        assert (await ferryman("status", 17, "--url", url, **given, **key)).code == 69
    plain = await ferryman("status", 17, "--url", "http://127.0.0.1:9", **given, **key)
    assert plain.code == 69, "certificates are for https only"


def test_certificates_that_cannot_be_used_are_refused_at_once(ca, tmp_path):
    host, caller, locked = ca.issue("host"), ca.issue("caller"), ca.issue("locked", "a password")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for why, more in (
        ("No such file", {"ca_file": tmp_path / "absent.pem"}),
        ("not a file with", {"ca_file": text}),
        ("client_key without", {"client_key": caller.key}),
        ("not a file with", {"client_cert": caller.cert}),
        ("does not belong", {"client_cert": caller.cert, "client_key": host.key}),
        ("not a file with", {"client_cert": locked.cert, "client_key": locked.key}),
    ):
        with pytest.raises(BadArgument, match=why):
            Client("https://127.0.0.1:5000", **more)
    with pytest.raises(BadArgument, match="are for https://"):
        Client("http://127.0.0.1:5000", ca_file=ca.cert)


@each(
    ("why", "url", "more"),
    [
        *(("such as http://", url, {}) for url in ("127.0.0.1:5000", "http://:5000", "ftp://h")),
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
    for kind in (Client, SyncClient):
        with pytest.raises(TypeError, match="no option 'tokn'"):
            kind("http://host", tokn="t")  # type: ignore[call-arg]


async def test_token_headers_and_user_go_with_every_request(fake):
    fake.on("GET /health", OK).on("GET /hpc/ferryman/health", OK).on("POST /upload", accepted())
    names = ("Authorization", "X-Portal", "Ferryman-Act-As")
    for options, sent in (
        ({"token": "secret", "act_as": "ada"}, ["Bearer secret", None, "ada"]),
        ({"token": "t", "headers": {"X-Portal": "p"}}, ["Bearer t", "p", None]),
        ({}, [None, None, None]),
    ):
        async with Client(fake.url, **options) as client:
            await client.health()
            await client.health()
            await client.submit(SCRIPT, service="example", user="bob" if not options else None)
        asked = [*fake.asked["GET /health"][-2:], fake.uploads[-1]]
        assert [[one.headers.get(name) for name in names] for one in asked] == [sent] * 3
    ids = [(one.fields.get("user_id"), one.query.get("user_id")) for one in fake.uploads]
    assert ids == [("ada", "ada"), (None, None), ("bob", "bob")]
    async with Client(f"{fake.url}/hpc/ferryman/") as client:
        assert (await client.health()).status == "ok"


async def test_a_proxy_is_used_but_not_for_this_machine(fake, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine ferryman.invalid login ada password secret\n")
    seen: list[str] = []

    async def proxy(request):
        seen.append(str(request.url))
        return OK.response()

    fake.on("GET **", proxy)
    monkeypatch.setenv("http_proxy", fake.url)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with Client("http://ferryman.invalid", token="t") as client:
        assert (await client.health()).status == "ok"
    for trust_env in (False, True):
        async with Client("http://ferryman.invalid", retry_for=0, trust_env=trust_env) as client:
            with pytest.raises(Unreachable):
                await client.health()
        monkeypatch.setenv("no_proxy", ".invalid")
    for name in ("localhost", "127.0.0.1"):
        async with Client(f"http://{name}:9", retry_for=0) as client:
            with pytest.raises(Unreachable):
                await client.health()
    async with Client("http://localhost:9", proxy=fake.url) as client:
        assert (await client.health()).status == "ok"
    assert seen == ["http://ferryman.invalid/health", "http://localhost:9/health"]
