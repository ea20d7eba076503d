"""``ferryman events`` and ``webhook-secret``, and the SDK behind them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ferryman import BadArgument, BadWebhook, Client, verify_webhook
from tests.kit.command_line import ferryman
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.webhook_receiver import receiving

ALLOWED = ("127.0.0.0/8",)


async def test_a_receiver_verifies_a_webhook_with_the_sdk(tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), webhook_allow=ALLOWED) as caller,
        Client(caller.url, user="ada") as client,
    ):
        job = await client.submit(
            {"run.sh": b"echo"}, service="my_service", callback_url=receiver.url(), meta={"a": 1}
        )
        (received,) = await receiver.arrived(1)
        (secret,) = (await client.webhook_secret()).secrets
        found = verify_webhook(received.body, received.headers, secret)
        assert (found.type, found.data.id, found.data.meta) == ("job.completed", job.id, {"a": 1})
        assert found.data.ended_at == (await client.status(job.id)).ended_at

        sent_at = int(received.headers["webhook-timestamp"])
        upper = {name.upper(): value for name, value in received.headers.items()}
        verify_webhook(received.body, upper, secret, now=sent_at + 299)
        several = {**received.headers, "webhook-signature": "v1,xx v2,yy "}
        several["webhook-signature"] += received.headers["webhook-signature"]
        verify_webhook(received.body, several, secret)
        other = (await client.webhook_secret(principal="somebody-else")).secrets[0]
        for body, headers, key, now, why in (
            (received.body + b" ", received.headers, secret, sent_at, "was altered"),
            (received.body, received.headers, other, sent_at, "secret is another one"),
            (received.body, received.headers, secret, sent_at + 301, "not sent within 300 s"),
            (received.body, received.headers, secret, sent_at - 301, "not sent within 300 s"),
            (received.body, {}, secret, sent_at, "no header webhook-id"),
            (received.body, {**received.headers, "webhook-id": "x"}, secret, sent_at, "altered"),
        ):
            with pytest.raises(BadWebhook, match=why):
                verify_webhook(body, headers, key, now=now)
        with pytest.raises(BadArgument, match="begins with whsec_"):
            verify_webhook(received.body, received.headers, "abc")


async def test_the_secret_is_printed_and_replaced_by_one_command(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        url = {"FERRYMAN_URL": caller.url}
        code, old, _ = await ferryman("webhook-secret", **url)
        assert (code, old[:6], len(old.split())) == (0, "whsec_", 1)
        code, out, _ = await ferryman("webhook-secret", "--replace", **url)
        new, former = out.split()
        assert (code, former, new != former) == (0, old.strip(), True)
        code, out, _ = await ferryman("webhook-secret", "--json", "--principal", "portal", **url)
        found = json.loads(out)
        assert (code, found["principal"], len(found["secrets"])) == (0, "portal", 1)


async def test_events_of_a_job_and_of_all_jobs(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller, Client(caller.url) as client:
        live = client.all_events(0, service="my_service")
        first = asyncio.ensure_future(anext(live))
        job = await caller.upload()
        seen = [one async for one in client.events(job)]
        assert seen[0].event == "job.queued"
        assert await first == seen[0]
        await live.aclose()
        everything = client.all_events(0)
        again = [await anext(everything) for _ in seen]
        assert [one.seq for one in again] == [one.seq for one in seen]
        await everything.aclose()
        past = [one async for one in client.events(1, follow=False)]
        assert [one.seq for one in past] == [one.seq for one in seen]

        code, out, _ = await ferryman("events", "1", FERRYMAN_URL=caller.url)
        assert (code, len(out.splitlines())) == (0, len(seen))
        assert "Completed" in out.splitlines()[-1]
        code, out, _ = await ferryman("events", "1", "-f", "--json", FERRYMAN_URL=caller.url)
        assert [json.loads(line)["seq"] for line in out.splitlines()] == [one.seq for one in seen]
        code, _, err = await ferryman("events", "1", "--user", "x", FERRYMAN_URL=caller.url)
        assert code == 2
        assert "leave out the ID" in err


async def test_without_a_number_all_events_begin_now(tmp_path: Path, monkeypatch) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller, Client(caller.url) as client:
        await caller.job(await caller.upload())
        asked, get = asyncio.Event(), client._transport.get

        async def noted(*words: Any, **more: Any) -> Any:
            found = await get(*words, **more)
            asked.set()
            return found

        monkeypatch.setattr(client._transport, "get", noted)
        live = client.all_events()
        first = asyncio.ensure_future(anext(live))
        await asked.wait()
        job = await caller.upload()
        found = await first
        assert (found.job_id, found.event) == (job, "job.queued")
        await live.aclose()
