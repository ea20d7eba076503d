"""What is announced, how it is signed, and when it is tried again."""

from __future__ import annotations

import base64
import dataclasses
import json

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from server.domain.jobs import Move, Step
from server.domain.webhook_targets import ServiceWebhook
from server.domain.webhooks import (
    ENDS,
    Delivery,
    Signer,
    SignerKind,
    Try,
    WebhookSecrets,
    deliveries_of,
    next_try_s,
    secret_bytes,
    secret_text,
    signature,
)
from shared.clock import SECOND, RealClock
from shared.wire import JobState
from tests.support.jobs import job

OWN = "https://a.example.org/own"
SERVICE = ServiceWebhook("https://a.example.org/all", frozenset(ENDS))
DELIVERY = Delivery(
    id=1,
    job_id=7,
    signer=Signer(SignerKind.PRINCIPAL, "ann"),
    service="s",
    url=OWN,
    event="job.completed",
    body="{}",
    state="pending",
    message="",
    tries=1,
    tries_before=0,
    next_at=0,
    created_at=0,
    ended_at=None,
)


def found(move, service=SERVICE, **fields):
    of_job = {"state": move.to, "submitted_by": "ann-laptop", "callback_url": OWN, "ended_at": 9}
    return [
        (str(one.signer), one.url, one.event, json.loads(one.body)["data"]["status"])
        for one in deliveries_of(job(**of_job | fields), move, service)
    ]


def test_the_end_of_a_job_is_announced_to_its_address_and_its_services():
    move = Move(7, 1, JobState.RUNNING, JobState.FAILED, 9, "exit code 3")
    assert found(move) == [
        ("principal ann-laptop", OWN, "job.failed", "Failed"),
        ("service s", SERVICE.url, "job.failed", "Failed"),
    ]
    assert found(move, None) == [("principal ann-laptop", OWN, "job.failed", "Failed")]
    assert found(move, callback_url=None)[0][0] == "service s"
    assert not found(move, None, callback_url=None)


def test_a_retry_and_the_end_of_a_child_are_not_announced():
    assert not found(Move(7, 1, JobState.RUNNING, JobState.QUEUED, 9, "tried again"))
    assert not found(Move(7, 1, JobState.RUNNING, JobState.FAILED, 9, "", changes={}), parent_id=3)
    assert not found(Move(7, 1, JobState.COMPLETED, JobState.CLEANED, 9, "expired"))


def test_a_start_is_announced_to_a_service_that_asks_for_it_once():
    service = dataclasses.replace(SERVICE, events=frozenset({"job.running", "job.completed"}))
    both = Move(
        *(7, 1, JobState.SUBMITTED, JobState.COMPLETED, 9, "done"),
        through=(Step(JobState.RUNNING, 8, "started"),),
    )
    assert [one[2:] for one in found(both, service, callback_url=None)] == [
        ("job.running", "Running"),
        ("job.completed", "Completed"),
    ]
    back = Move(7, 1, JobState.UNKNOWN, JobState.RUNNING, 9, "the agent is back")
    assert not found(back, service)


def test_signatures_are_those_of_standard_webhooks():
    now = RealClock().now() // SECOND
    body = json.dumps({"type": "job.completed", "text": "ä"}).encode()
    secrets = WebhookSecrets([b"new" * 11, b"old" * 11])
    keys = secrets.of(Signer(SignerKind.PRINCIPAL, "ann"))
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": signature(keys, "msg_1", now, body),
    }
    for key in keys:
        assert Webhook(secret_text(key)).verify(body, headers)["text"] == "ä"
    others = [
        *secrets.of(Signer(SignerKind.PRINCIPAL, "bob")),
        *secrets.of(Signer(SignerKind.SERVICE, "ann")),
    ]
    for key in others:
        with pytest.raises(WebhookVerificationError):
            Webhook(secret_text(key)).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_text(keys[0])).verify(body + b" ", headers)


def test_secrets_are_checked():
    text = "whsec_" + base64.b64encode(b"x" * 32).decode()
    assert secret_bytes(text) == b"x" * 32
    assert secret_text(secret_bytes(text)) == text
    assert WebhookSecrets([b"y" * 32]).of(Signer(SignerKind.SERVICE, "s"), text) == [b"x" * 32]
    short = "whsec_" + base64.b64encode(b"x" * 23).decode()
    for wrong in ("", "whsec_", "whsec_***", text.removeprefix("whsec_"), short, text + "ä"):
        with pytest.raises(ValueError, match="whsec_ and base64 of 24 to 64 bytes"):
            secret_bytes(wrong)


def test_tries_are_spread_over_almost_a_day():
    waits = []
    number = 1
    while True:
        failed = Try(number, 0, 0.1, 500, "answered 500")
        wait = next_try_s(DELIVERY, failed, lambda low, high: (low + high) / 2)
        if wait is None:
            break
        waits.append(wait)
        number += 1
    assert len(waits) == 10
    assert waits == sorted(waits)
    assert waits[0] == 5
    assert 0.9 * 86_400 < sum(waits) * 1.1 < 1.1 * 86_400


def test_a_receiver_may_ask_for_a_later_try_and_for_none():
    def wait(**fields):
        done = Try(1, 0, 0.1, 503, "answered 503", **fields)
        return next_try_s(DELIVERY, done, lambda low, _: low)

    assert wait() == 4.5
    assert wait(retry_after_s=3_600) == 3_600
    assert wait(retry_after_s=1) == 4.5
    assert wait(retry_after_s=1e9) == 86_400
    assert wait(is_final=True) is None


def test_a_delivery_that_is_sent_again_has_all_its_tries_before_it():
    again = dataclasses.replace(DELIVERY, tries_before=11)
    assert next_try_s(again, Try(12, 0, 0.1, 500, "x"), lambda low, _: low) == 4.5
