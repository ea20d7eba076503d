"""Webhooks over HTTP: a real server, and a real receiver on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.waiting import eventually
from tests.kit.warm import Place
from tests.kit.webhook_receiver import Received, receiving

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = '[server]\nwebhook_allow = ["127.0.0.0/8"]\n'
OPERATOR, ANN, BOB = (letter * 20 for letter in "oab")
PRINCIPALS = {
    OPERATOR: Principal("op", Role.OPERATOR),
    ANN: Principal("ann", Role.USER, "7"),
    BOB: Principal("bob", Role.USER, "8"),
}
SECRET = "/api/v1/webhook-secret"


async def delivered(place: Place, job: int, state: str = "delivered", tries: int = 1) -> Any:
    """The newest webhook of the job, once it is in the state."""

    def wanted(found: Any) -> bool:
        newest = (found["webhooks"] or [{}])[-1]
        # A try counts when it starts, its answer is noted after it.
        return newest.get("state") == state and len(newest["tried"]) >= tries

    found = await eventually(lambda: place.api("GET", f"/jobs/{job}"), wanted)
    return found["webhooks"][-1]


def verified(received: Received, secret: str) -> Any:
    return Webhook(secret).verify(received.body, dict(received.headers))


async def test_the_end_of_a_job_is_posted_to_its_address_with_a_signature(place: Place) -> None:
    async with receiving() as receiver:
        address = receiver.url("/hook?for=7")
        job = await place.upload(callback_url=address, name="fold", meta='{"run": "r1"}')
        (received,) = await receiver.arrived(1)
        _, secret = await place.ask("GET", SECRET)
        assert secret["principal"] == "op"
        body = verified(received, secret["secrets"][0])
        assert (received.path, body["type"]) == ("/hook?for=7", "job.completed")
        shown = await place.job(job)
        same = ("id", "status", "message", "user_id", "service", "name", "tags", "meta", "attempt")
        for name in (*same, "run", "reason", "exit_code", "created_at", "started_at", "ended_at"):
            assert body["data"][name] == shown[name], name
        assert body["data"]["meta"] == {"run": "r1"}
        assert body["timestamp"] == shown["ended_at"]
        assert shown["callback_url"] == address
        log = await delivered(place, job)
        assert (log["event"], log["tries"], log["tried"][0]["status"]) == ("job.completed", 1, 204)
        assert log["next_at"] is None
        assert log["ended_at"]
        # A job that is deleted takes its deliveries along.
        assert (await place.ask("DELETE", f"/api/v1/jobs/{job}"))[0] == 204
        assert await place.server.context.webhooks.of_job(job) == []


async def test_a_failed_delivery_is_tried_again_and_its_tries_stand_in_the_job(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.domain.webhooks._DELAYS_S", (0.01, 3_600))
    async with receiving((503, {}), 500) as receiver:
        job = await place.upload(callback_url=receiver.url())
        first, second = await receiver.arrived(2)
        log = await delivered(place, job, "pending", 2)
        assert log["message"] == "answered 500 Internal Server Error"
        assert [one["status"] for one in log["tried"]] == [503, 500]
        assert log["next_at"] > log["tried"][1]["at"]
        assert first.body == second.body
        assert first.headers["webhook-id"] == second.headers["webhook-id"]


async def test_a_receiver_that_is_gone_gets_no_more(place: Place) -> None:
    async with receiving(410) as receiver:
        job = await place.upload(callback_url=receiver.url())
        log = await delivered(place, job, "failed")
        assert log["message"] == "answered 410 Gone: the receiver wants no more"


async def test_each_principal_has_a_secret_of_its_own_which_it_replaces(place: Place) -> None:
    async def secrets(token: str, method: str = "GET", query: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        status, found = await place.ask(method, SECRET + query, headers=headers)
        return found["secrets"] if status == 200 else status

    async with receiving() as receiver:
        (old,) = await secrets(ANN)
        new, former = await secrets(ANN, "POST")
        assert former == old != new
        place.session.headers["Authorization"] = f"Bearer {ANN}"
        await place.upload(user_id="7", callback_url=receiver.url())
        (received,) = await receiver.arrived(1)
        place.session.headers["Authorization"] = f"Bearer {OPERATOR}"
        for secret in (new, old):
            verified(received, secret)
        assert await secrets(BOB, query="?principal=ann") == 403
        assert await secrets(BOB, "POST", "?principal=ann") == 403
        assert await secrets(OPERATOR, query="?principal=ann") == [new, old]
        assert len({(await secrets(token))[0] for token in PRINCIPALS}) == 3


@each(
    "url, why",
    [
        ("ftp://example.org/x", "is not an http:// or https:// address"),
        ("https://user:pw@example.org/", "user name or password"),
        ("https://127.1/", "neither a host name nor an IP address"),
        ("https://2130706433/", "neither a host name nor an IP address"),
        ("http://169.254.169.254/latest/meta-data", "is not a public address"),
        ("http://[::ffff:10.0.0.1]/", "is not a public address"),
        ("https://example.org:99999/", "is no address"),
    ],
)
async def test_an_upload_with_an_address_that_no_webhook_may_reach_is_refused(
    place: Place, url: str, why: str
) -> None:
    status, answer = await place.posted(callback_url=url)
    assert status == 400
    assert answer["message"].startswith("Invalid callback_url: ")
    assert why in answer["message"]
    assert not (await place.api("GET", "/jobs", user=place.user))["items"]


async def test_timestamps_are_of_the_clock_that_receivers_compare_with(place: Place) -> None:
    """The server's own time follows a jump slowly; signatures would be refused as too old."""
    clock = place.warm.clock
    async with receiving() as receiver:
        clock.jump(3 * 86_400)
        await place.upload(callback_url=receiver.url())
        (received,) = await receiver.arrived(1)
        sent_at = int(received.headers["webhook-timestamp"])
        assert abs(sent_at - clock.now() / 1_000_000) < 20
        clock.jump(-3 * 86_400)


async def test_what_was_not_delivered_before_a_stop_is_delivered_after_the_next_start(
    module_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.stages.webhooks._SENDING_S", 0.01)
    folder = module_folder / "twice"
    folder.mkdir()
    allowed: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8",)}
    async with receiving() as receiver:
        receiver.hold.clear()
        async with driving(folder, FakeOrchestrator(), **allowed) as caller:
            await caller.upload(callback_url=receiver.url())
            await receiver.arrived(1)
        receiver.hold.set()
        before = len(receiver.received)
        async with driving(folder, FakeOrchestrator(), **allowed) as caller:
            received = await receiver.arrived(before + 1)
            assert len({one.headers["webhook-id"] for one in received}) == 1
            async with caller.session.get(f"{caller.url}{SECRET}") as answer:
                secret = (await answer.json())["secrets"][0]
            for one in received:
                verified(one, secret)
