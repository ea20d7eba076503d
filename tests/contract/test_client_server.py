"""What the client leaves to the server: rules that it has no copy of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import BadArgument, Client, Refused
from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving


def client_of(caller: ServerClient) -> Client:
    return Client(caller.url, user="ada", retry_for=0)


@pytest.fixture
async def caller(tmp_path: Path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        yield caller


async def test_a_user_needs_no_more_than_a_token(tmp_path: Path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "run.sh").write_text("true")
    principals = {
        "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
        "the-token-of-a-portal": Principal("portal", Role.PORTAL),
    }
    agent = FakeOrchestrator(then="Completed")
    async with driving(tmp_path / "server", agent, principals=principals) as caller:
        async with Client(caller.url, token="the-token-of-ann") as client:
            job = await client.submit(tmp_path / "bundle", service="my_service")
            states = [event.status async for event in client.events(job.id)]
            result = await client.wait(job.id, timeout=60)
            assert (result.user_id, result.status, states[-1]) == ("ann", "Completed", "Completed")
            assert result.created_at.tzinfo is not None
            saved = await result.save(tmp_path / "out")
            assert (saved / "output.txt").is_file()
        acting = Client(caller.url, token="the-token-of-a-portal", act_as="bob")
        async with acting as portal:
            job = await portal.submit({"run.sh": b"true"}, service="my_service")
            assert (await portal.status(job.id)).user_id == "bob"
            assert [one.user_id async for one in portal.jobs()] == ["bob"]
        async with Client(caller.url, token="the-token-of-a-portal") as portal:
            with pytest.raises(Refused, match="user_id"):
                await portal.submit({"run.sh": b"true"}, service="my_service")


async def count(client: Client) -> int:
    return len([job async for job in client.jobs()])


async def test_limits_that_are_wrong_are_refused_before_the_content_is_sent(caller):
    reply: list[tuple[int, int]] = []
    wrong: list[dict[str, Any]] = [
        {"timeout": "soon"},
        {"timeout": -5},
        {"memory": "lots"},
        {"cpus": "nan"},
        {"pids": "1.5"},
        {"pids": 0.5},
        {"disk": 1},
    ]
    bundle = {"run.sh": b"true", "large": bytes(3 << 20)}
    async with client_of(caller) as client:
        for asked in wrong:
            (field,) = asked
            with pytest.raises(BadArgument, match=field):
                await client.submit(
                    bundle, service="my_service", progress=lambda *at: reply.append(at), **asked
                )
        assert await count(client) == 0
    assert reply == []


async def test_a_name_that_only_the_server_refuses_is_reported_with_its_reason(caller):
    bundle = {"run.sh": b"true", "x" * 300: b""}
    async with client_of(caller) as client:
        with pytest.raises(Refused, match="longer than 255 bytes") as caught:
            await client.submit(bundle, service="my_service")
        assert caught.value.status == 400
        assert await count(client) == 0


async def test_a_job_can_be_asked_for_by_the_key_of_its_upload(caller):
    async with client_of(caller) as client:
        made = await client.submit({"run.sh": b"true"}, service="my_service")
        await client.submit({"run.sh": b"true"}, service="my_service")

    async def found(**query: str) -> tuple[int, Any]:
        async with caller.session.get(f"{caller.url}/api/v1/jobs", params=query) as answer:
            return answer.status, await answer.json()

    key = made.idempotency_key
    status, page = await found(user="ada", idempotency_key=key)
    assert (status, [job["id"] for job in page["items"]], page["next"]) == (200, [made.id], None)
    for other in ({"user": "bob", "idempotency_key": key}, {"user": "ada", "idempotency_key": "x"}):
        assert (await found(**other))[1]["items"] == []
    status, refusal = await found(idempotency_key=key)
    assert (status, refusal["code"], refusal["part"]) == (400, "missing_user", "idempotency_key")
