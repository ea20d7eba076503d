"""What is announced, how it is signed, and when it is tried again."""

from __future__ import annotations

import base64
import json

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from server.domain.jobs import Move
from server.domain.webhooks import (
    Try,
    deliveries_of,
    next_try_s,
    secret_bytes,
    secret_of,
    secret_text,
    signature,
)
from shared.clock import SECOND, RealClock
from shared.wire import JobState
from tests.kit.jobs import job

OWN = "https://a.example.org/own"


def found(move, **fields):
    of_job = {"state": move.to, "submitted_by": "ann-laptop", "callback_url": OWN, "ended_at": 9}
    return [
        (one.principal, one.url, one.event, json.loads(one.body)["data"]["status"])
        for one in deliveries_of(job(**of_job | fields), move)
    ]


def test_the_end_of_a_job_is_announced_to_its_address():
    move = Move(7, 1, JobState.RUNNING, JobState.FAILED, 9, "exit code 3")
    assert found(move) == [("ann-laptop", OWN, "job.failed", "Failed")]
    assert not found(move, callback_url=None)


def test_a_start_a_retry_and_the_end_of_a_child_are_not_announced():
    assert not found(Move(7, 1, JobState.SUBMITTED, JobState.RUNNING, 9, "started"))
    assert not found(Move(7, 1, JobState.RUNNING, JobState.QUEUED, 9, "tried again"))
    assert not found(Move(7, 1, JobState.RUNNING, JobState.FAILED, 9, "", changes={}), parent_id=3)
    assert not found(Move(7, 1, JobState.COMPLETED, JobState.CLEANED, 9, "expired"))


def test_signatures_are_those_of_standard_webhooks():
    now = RealClock().now() // SECOND
    body = json.dumps({"type": "job.completed", "text": "ä"}).encode()
    server = b"key" * 11
    keys = [secret_of(server, "ann", number) for number in (1, 0)]
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": signature(keys, "msg_1", now, body),
    }
    for key in keys:
        assert Webhook(secret_text(key)).verify(body, headers)["text"] == "ä"
    others = [secret_of(server, "bob", 0), secret_of(server, "ann", 2), secret_of(b"k", "ann", 0)]
    for key in others:
        with pytest.raises(WebhookVerificationError):
            Webhook(secret_text(key)).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_text(keys[0])).verify(body + b" ", headers)


def test_secrets_are_checked():
    text = "whsec_" + base64.b64encode(b"x" * 32).decode()
    assert secret_bytes(text) == b"x" * 32
    assert secret_text(secret_bytes(text)) == text
    short = "whsec_" + base64.b64encode(b"x" * 23).decode()
    for wrong in ("", "whsec_", "whsec_***", text.removeprefix("whsec_"), short, text + "ä"):
        with pytest.raises(ValueError, match="whsec_ and base64 of 24 to 64 bytes"):
            secret_bytes(wrong)


def test_tries_are_spread_over_almost_a_day():
    waits = []
    number = 1
    while True:
        failed = Try(number, 0, 0.1, 500, "answered 500")
        wait = next_try_s(failed, lambda low, high: (low + high) / 2)
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
        return next_try_s(done, lambda low, _: low)

    assert wait() == 4.5
    assert wait(retry_after_s=3_600) == 3_600
    assert wait(retry_after_s=1) == 4.5
    assert wait(retry_after_s=1e9) == 86_400
    assert wait(is_final=True) is None
