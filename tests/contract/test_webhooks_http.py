"""Webhooks over HTTP: a real server, and a real receiver on this machine."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from standardwebhooks.webhooks import Webhook

from shared.principals import Principal, Role
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import ServerClient, driving
from tests.support.sim_clock import JumpingClock
from tests.support.webhook_receiver import Received, receiving

ALLOWED: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8",)}
SERVICE = """
[services.my_service.webhook]
url = "{url}"
"""


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
    """The newest delivery of the job, once it is in the state."""
    while True:
        items = (await get(caller, f"/api/v1/jobs/{job}/deliveries"))["items"]
        if items and items[0]["state"] == state:
            found: dict[str, Any] = await get(caller, f"/api/v1/deliveries/{items[0]['id']}")
            return found


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
        assert secret["of"] == "principal local"
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
        assert shown["links"]["deliveries"] == f"/api/v1/jobs/{job}/deliveries"
        log = await delivered(caller, job)
        assert log["webhook_id"] == received.headers["webhook-id"]
        assert (log["event"], log["tries"], log["tried"][0]["status"]) == ("job.completed", 1, 204)
        assert log["next_at"] is None
        assert log["ended_at"]


async def test_a_failed_delivery_is_tried_again_when_its_receiver_asks_for_it(tmp_path):
    async with (
        receiving((503, {"Retry-After": "1"}), 500) as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(callback_url=receiver.url())
        await receiver.arrived(1)
        log = await delivered(caller, job, "pending")
        while not log["message"]:  # a try is listed when it starts, its answer is noted after it
            log = await delivered(caller, job, "pending")
        assert log["message"] == "answered 503 Service Unavailable"
        assert log["next_at"] > log["tried"][0]["at"]
        again = await post(caller, f"/api/v1/deliveries/{log['id']}/replay")
        assert again["state"] == "pending"
        first, second = await receiver.arrived(2)
        assert first.body == second.body
        assert first.headers["webhook-id"] == second.headers["webhook-id"]


async def test_a_delivered_webhook_can_be_sent_again(tmp_path):
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(callback_url=receiver.url())
        log = await delivered(caller, job)
        await post(caller, f"/api/v1/deliveries/{log['id']}/replay")
        await receiver.arrived(2)
        log = await delivered(caller, job)
        assert [one["number"] for one in log["tried"]] == [1, 2]


async def test_a_receiver_that_is_gone_gets_no_more(tmp_path):
    async with (
        receiving(410) as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(callback_url=receiver.url())
        log = await delivered(caller, job, "failed")
        assert log["message"] == "answered 410 Gone: the receiver wants no more"


async def test_a_service_announces_its_jobs_and_its_address_is_the_operators(tmp_path):
    principals = {
        name: Principal(name, role, user)
        for name, role, user in (
            ("op", Role.OPERATOR, None),
            ("ann", Role.USER, "7"),
            ("bob", Role.USER, "8"),
        )
    }
    async with receiving() as receiver:
        extra = SERVICE.format(url=receiver.url("/all"))
        extra += 'events = ["job.running", "job.completed"]'
        host = FakeOrchestrator(then="Running")
        async with driving(tmp_path, host, extra=extra, principals=principals, **ALLOWED) as caller:
            caller.session.headers["Authorization"] = "Bearer ann"
            job = await caller.upload(callback_url=receiver.url("/own"))
            await receiver.arrived(1)
            host.payloads[1].status = "Completed"
            found = {(one.path, one.document["type"]): one for one in await receiver.arrived(3)}
            of_service = await get(caller, "/api/v1/webhook-secret?service=my_service", "op")
            own = await get(caller, "/api/v1/webhook-secret", "ann")
            verified(found["/all", "job.running"], of_service["secrets"][0])
            verified(found["/all", "job.completed"], of_service["secrets"][0])
            verified(found["/own", "job.completed"], own["secrets"][0])
            assert found["/all", "job.running"].document["data"]["status"] == "Running"

            seen = {
                token: {one["url"] for one in (await get(caller, path, token))["items"]}
                for path in ("/api/v1/deliveries", f"/api/v1/jobs/{job}/deliveries")
                for token in ("op", "ann")
            }
            assert seen == {
                "op": {receiver.url("/own"), receiver.url("/all")},
                "ann": {receiver.url("/own")},
            }
            assert not (await get(caller, "/api/v1/deliveries", "bob"))["items"]
            every = (await get(caller, "/api/v1/deliveries", "op"))["items"]
            for one in every:
                path = f"/api/v1/deliveries/{one['id']}"
                own_one = one["url"] == receiver.url("/own")
                await get(caller, path, "ann", 200 if own_one else 404)
                await get(caller, path, "bob", 404)
                await post(caller, f"{path}/replay", "bob", 404)
            await get(caller, "/api/v1/webhook-secret?principal=ann", "bob", 403)
            await get(caller, "/api/v1/webhook-secret?service=my_service", "bob", 403)
            secrets = [
                (await get(caller, f"/api/v1/webhook-secret{query}", "op"))["secrets"][0]
                for query in ("", "?principal=ann", "?principal=bob", "?service=my_service")
            ]
            assert len(set(secrets)) == 4
            assert secrets[1] == own["secrets"][0]
            for token, url in (("op", receiver.url("/all")), ("ann", None)):
                shown = (await get(caller, "/api/v1/services/my_service", token))["webhook"]
                assert (shown and shown["url"]) == url


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


async def test_what_was_not_delivered_before_a_stop_is_delivered_after_the_next_start(tmp_path):
    async with receiving() as receiver:
        receiver.hold.clear()
        async with driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller:
            await caller.upload(callback_url=receiver.url())
            (first,) = await receiver.arrived(1)
        receiver.hold.set()
        async with driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller:
            (log,) = (await get(caller, "/api/v1/deliveries"))["items"]
            assert log["state"] == "pending"
            assert log["tries"] == 1
            await post(caller, f"/api/v1/deliveries/{log['id']}/replay")
            _, second = await receiver.arrived(2)
            assert second.headers["webhook-id"] == first.headers["webhook-id"]
            secret = (await get(caller, "/api/v1/webhook-secret"))["secrets"][0]
            verified(second, secret)
            verified(first, secret)


async def test_a_secret_of_the_settings_can_be_replaced_without_a_gap(tmp_path):
    file = tmp_path / "secrets"
    keys = ["whsec_" + "bmV3" * 8, "whsec_" + "b2xk" * 8]
    file.write_text("\n".join(keys))
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), webhook_secret_file=file, **ALLOWED) as caller,
    ):
        await caller.upload(callback_url=receiver.url())
        (received,) = await receiver.arrived(1)
        secrets = (await get(caller, "/api/v1/webhook-secret"))["secrets"]
        assert len(secrets) == 2
        for secret in secrets:
            verified(received, secret)


async def test_a_job_that_is_deleted_takes_its_deliveries_along(tmp_path):
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), **ALLOWED) as caller,
    ):
        job = await caller.upload(callback_url=receiver.url())
        await delivered(caller, job)
        async with caller.session.delete(f"{caller.url}/api/v1/jobs/{job}") as answer:
            assert answer.status == 204
        assert not (await get(caller, "/api/v1/deliveries"))["items"]


async def test_the_secret_of_a_service_comes_from_its_file_and_not_through_the_api(tmp_path):
    own = "whsec_" + "QUJD" * 10
    file = tmp_path / "secret"
    file.write_text(f"{own}\n")
    async with receiving() as receiver:
        extra = SERVICE.format(url=receiver.url()) + f'secret_file = "{file}"'
        async with driving(tmp_path, FakeOrchestrator(), extra=extra, **ALLOWED) as caller:
            await caller.upload()
            (received,) = await receiver.arrived(1)
            verified(received, own)
            for key, value in (("secret", own), ("secret_file", "/etc/hostname")):
                settings = {"webhook": {"url": "https://example.org/", key: value}}
                body = json.dumps(settings)
                url = f"{caller.url}/api/v1/services/other"
                async with caller.session.put(url, data=body) as answer:
                    assert answer.status == 400
                    assert "has the secret that the server makes" in (await answer.json())["detail"]


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
