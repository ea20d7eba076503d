"""Webhooks over HTTP: a real server, and a real receiver on this machine."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from standardwebhooks.webhooks import Webhook

from shared.principals import Principal, Role
from tests.kit.clock import JumpingClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving
from tests.kit.webhook_receiver import Received, receiving

ALLOWED: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8",)}


async def get(caller: ServerClient, path: str, token: str = "", status: int = 200) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with caller.session.get(f"{caller.url}{path}", headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def post(caller: ServerClient, path: str, token: str = "", status: int = 200) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with caller.session.post(f"{caller.url}{path}", headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def delivered(caller: ServerClient, job: int, state: str = "delivered") -> dict[str, Any]:
    """The newest webhook of the job, once it is in the state."""
    while True:
        items = (await get(caller, f"/api/v1/jobs/{job}"))["webhooks"]
        if items and items[-1]["state"] == state:
            return dict(items[-1])


def verified(received: Received, secret: str) -> Any:
    return Webhook(secret).verify(received.body, dict(received.headers))


async def test_the_end_of_a_job_is_posted_to_its_address_with_a_signature(tmp_path):
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(
            callback_url=receiver.url("/hook?for=7"), name="fold", meta='{"run": "r1"}'
        )
        (received,) = await receiver.arrived(1)
        secret = await get(caller, "/api/v1/webhook-secret")
        assert secret["principal"] == "local"
        body = verified(received, secret["secrets"][0])
        assert received.path == "/hook?for=7"
        assert body["type"] == "job.completed"
        shown = await caller.job(job)
        same = ("id", "status", "message", "user_id", "service", "name", "tags", "meta", "attempt")
        for name in (*same, "run", "reason", "exit_code", "created_at", "started_at", "ended_at"):
            assert body["data"][name] == shown[name], name
        assert body["data"]["meta"] == {"run": "r1"}
        assert body["timestamp"] == shown["ended_at"]
        assert shown["callback_url"] == receiver.url("/hook?for=7")
        log = await delivered(caller, job)
        assert (log["event"], log["tries"], log["tried"][0]["status"]) == ("job.completed", 1, 204)
        assert log["next_at"] is None
        assert log["ended_at"]


async def test_a_failed_delivery_is_tried_again_and_its_tries_stand_in_the_job(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("server.domain.webhooks._DELAYS_S", (0.01, 3_600))
    async with (
        receiving((503, {}), 500) as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(callback_url=receiver.url())
        first, second = await receiver.arrived(2)
        log = await delivered(caller, job, "pending")
        while len(log["tried"]) < 2:  # a try counts when it starts, its answer is noted after it
            log = await delivered(caller, job, "pending")
        assert log["message"] == "answered 500 Internal Server Error"
        assert [one["status"] for one in log["tried"]] == [503, 500]
        assert log["next_at"] > log["tried"][1]["at"]
        assert first.body == second.body
        assert first.headers["webhook-id"] == second.headers["webhook-id"]


async def test_a_receiver_that_is_gone_gets_no_more(tmp_path):
    async with (
        receiving(410) as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(callback_url=receiver.url())
        log = await delivered(caller, job, "failed")
        assert log["message"] == "answered 410 Gone: the receiver wants no more"


async def test_each_principal_has_a_secret_of_its_own_which_it_replaces(tmp_path):
    principals = {
        name: Principal(name, role, user)
        for name, role, user in (
            ("op", Role.OPERATOR, None),
            ("ann", Role.USER, "7"),
            ("bob", Role.USER, "8"),
        )
    }
    path = "/api/v1/webhook-secret"
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), principals=principals, **ALLOWED) as caller,
    ):
        caller.session.headers["Authorization"] = "Bearer ann"
        (old,) = (await get(caller, path, "ann"))["secrets"]
        new, former = (await post(caller, path, "ann"))["secrets"]
        assert former == old != new
        job = await caller.upload(callback_url=receiver.url())
        (received,) = await receiver.arrived(1)
        for secret in (new, old):
            verified(received, secret)
        await get(caller, f"{path}?principal=ann", "bob", 403)
        await post(caller, f"{path}?principal=ann", "bob", 403)
        assert (await get(caller, f"{path}?principal=ann", "op"))["secrets"] == [new, old]
        secrets = [(await get(caller, path, name))["secrets"][0] for name in ("op", "ann", "bob")]
        assert len(set(secrets)) == 3
        await get(caller, f"/api/v1/jobs/{job}", "bob", 404)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/x", "is not an http:// or https:// address"),
        ("https://user:pw@example.org/", "user name or password"),
        ("https://127.1/", "neither a host name nor an IP address"),
        ("https://2130706433/", "neither a host name nor an IP address"),
        ("http://169.254.169.254/latest/meta-data", "is not a public address"),
        ("http://[::ffff:10.0.0.1]/", "is not a public address"),
        ("http://localhost:5000/", "leads to what is not a public address"),
        ("https://example.org:99999/", "is no address"),
    ],
)
async def test_an_upload_with_an_address_that_no_webhook_may_reach_is_refused(tmp_path, url, why):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        form = aiohttp.FormData({"user_id": "7", "service": "my_service", "callback_url": url})
        form.add_field("file", b"echo", filename="run.sh")
        async with caller.session.post(f"{caller.url}/upload", data=form) as answer:
            text = (await answer.json())["message"]
        assert answer.status == 400
        assert text.startswith("Invalid callback_url: ")
        assert why in text
        assert not (await get(caller, "/api/v1/jobs"))["items"]


async def test_what_was_not_delivered_before_a_stop_is_delivered_after_the_next_start(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("server.stages.webhooks._SENDING_S", 0.01)
    async with receiving() as receiver:
        receiver.hold.clear()
        async with driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller:
            await caller.upload(callback_url=receiver.url())
            (first,) = await receiver.arrived(1)
        receiver.hold.set()
        async with driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller:
            _, second = await receiver.arrived(2)
            assert second.headers["webhook-id"] == first.headers["webhook-id"]
            secret = (await get(caller, "/api/v1/webhook-secret"))["secrets"][0]
            verified(second, secret)
            verified(first, secret)


async def test_a_job_that_is_deleted_takes_its_deliveries_along(tmp_path):
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(callback_url=receiver.url())
        await delivered(caller, job)
        async with caller.session.delete(f"{caller.url}/api/v1/jobs/{job}") as answer:
            assert answer.status == 204
        assert await caller.server.context.webhooks.of_job(job) == []


async def test_timestamps_are_of_the_clock_that_receivers_compare_with(tmp_path):
    """The server's own time follows a jump slowly; signatures would be refused as too old."""
    clock = JumpingClock()
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), machine=clock, **ALLOWED) as caller,
    ):
        clock.jump(3 * 86_400)
        await caller.upload(callback_url=receiver.url())
        (received,) = await receiver.arrived(1)
        sent_at = int(received.headers["webhook-timestamp"])
        assert abs(sent_at - clock.now() / 1_000_000) < 20
