"""An agent proves who it is; whoever has taken its address is not believed, and learns nothing."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from client_agent.settings.agent import AgentSection
from server.settings import load
from server.settings.tables import AgentTable
from shared.clock import yield_to_loop
from shared.http.authentication import NONCE, PROOF, check_proof, proof
from shared.wire import AgentHealth
from tests.kit.agent_http import calling
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.server_http import ServerClient, hosted

SECRET = "the-secret-of-node-1"
TOKEN = "the-token-of-a-server"


@contextlib.asynccontextmanager
async def server_of(folder: Path, port: int, identity: str = SECRET) -> AsyncIterator[ServerClient]:
    file = folder / "ferryman.toml"
    lines = f'token = "{TOKEN}"\n' + (f'identity_secret = "{identity}"\n' if identity else "")
    file.write_text(f'[agents.node]\nurl = "http://127.0.0.1:{port}"\n{lines}')
    async with AsyncExitStack() as stack:
        settings = load.read(file, {"server": {"data_dir": folder / "server"}}, {})
        yield await hosted(settings, stack)


async def trouble(client: ServerClient) -> str:
    """What is wrong with the agent, once it was tried."""
    (node,) = client.server.context.fleet.clients.values()
    while node.unreachable == node.not_reached_yet:
        await yield_to_loop()
    return node.trouble


@pytest.mark.parametrize(
    ("secret", "asked", "trouble_is"),
    [
        (SECRET, SECRET, ""),
        (SECRET, "", ""),  # it proves more than it is asked for
        (None, SECRET, "it does not prove who it is: it has no identity_secret"),
        ("the-secret-of-node-2", SECRET, "it has another identity_secret"),
    ],
)
async def test_without_the_right_proof_it_is_silence(tmp_path, secret, asked, trouble_is):
    async with (
        calling(tmp_path, tokens=[TOKEN], identity_secret=secret) as agent,
        server_of(tmp_path, agent.port, asked) as client,
    ):
        agent.sandbox.script = FakeProcess.finish
        job_id = await client.upload(service="example")
        if not trouble_is:
            assert (await client.job(job_id))["status"] == "Completed"
            return
        assert trouble_is in await trouble(client)
        _, _, page = await client.get("/api/v1/agents")
        assert trouble_is.encode() in page
        assert SECRET.encode() not in page
        assert (await client.job(job_id, until="Queued"))["attempt"] == 0


class Impostor:
    """Answers as an agent does, and notes what it is sent.

    Args:
        proved: paths whose answers it can prove, perhaps because it passes them on.
    """

    def __init__(self, *proved: str) -> None:
        self.proved, self.asked = proved, list[tuple[str, str | None]]()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("Authorization")))
        nonce = request.headers[NONCE]
        headers = {PROOF: proof(SECRET, nonce, 200)} if request.path in self.proved else {}
        health = AgentHealth(status="ok", database="ok", agent="node", agent_id="x", slots=9)
        return web.Response(text=health.model_dump_json(), headers=headers)


@pytest.mark.parametrize(
    ("proved", "heard"),
    [((), {("/", None)}), (("/",), {("/", None), ("/health", f"Bearer {TOKEN}")})],
)
async def test_who_has_taken_its_address_gets_nothing_before_each_answer_is_proved(
    tmp_path, proved, heard
) -> None:
    impostor, application = Impostor(*proved), web.Application()
    application.router.add_route("*", "/{path:.*}", impostor.answer)
    async with (
        TestServer(application) as listening,
        server_of(tmp_path, listening.port or 0) as client,
    ):
        await client.upload(service="example")
        assert "does not prove" in await trouble(client)
    assert set(impostor.asked) == heard


def test_a_proof_is_of_one_answer():
    right = proof(SECRET, "a" * 32, 200)
    check_proof(SECRET, "a" * 32, 200, right)
    for nonce, status in (("b" * 32, 200), ("a" * 32, 404)):
        with pytest.raises(ValueError, match="proof"):
            check_proof(SECRET, nonce, status, right)
    with pytest.raises(ValueError, match="proof"):
        check_proof(SECRET, "a" * 32, 200, "\udcff")


def test_secrets_that_cannot_be_used_are_refused_and_not_shown(tmp_path):
    short, empty, none = tmp_path / "short", tmp_path / "empty", tmp_path / "none"
    short.write_text("hunter2\n")
    empty.write_text("\n")
    for keys, words in (
        ({"identity_secret": "hunter2"}, "identity_secret has 7 characters"),
        ({"identity_secret": {"file": short}}, r"short\) has 7 characters"),
        ({"identity_secret": {"file": empty}}, "empty: there is nothing in it"),
        ({"identity_secret": {"file": none}}, "none: No such file"),
    ):
        for kind, more in ((AgentSection, {}), (AgentTable, {"url": "http://node:1"})):
            with pytest.raises(ValidationError, match=words) as refused:
                kind.model_validate(keys | more)
            assert "hunter2" not in str(refused.value)
    urls = {f"{name}_url": "http://node:1/x" for name in ("upload", "download", "terminate")}
    with pytest.raises(ValidationError, match="cannot prove who it is"):
        AgentTable.model_validate(urls | {"identity_secret": SECRET})
