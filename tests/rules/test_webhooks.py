"""Webhooks: where they may be sent, what is announced, and when it is repeated."""

import itertools
import json
from ipaddress import ip_address

import pytest

from server.domain.jobs import Move
from server.domain.webhooks import (
    AllowedTargets,
    Try,
    WebhookTarget,
    announced,
    is_public,
    next_try_s,
    webhook_target,
)
from shared.wire import JobState as S
from tests.kit.each import each
from tests.kit.store import job

OWN = "https://a.example.org/own"


def found(move, **fields):
    of_job = {"state": move.to, "submitted_by": "ann-laptop", "callback_url": OWN, "ended_at": 9}
    one = announced(job(**of_job | fields), move)
    if one is None:
        return None
    status = json.loads(one["body"])["data"]["status"]
    return one["principal"], one["url"], one["event"], status


def test_the_end_of_a_job_is_announced_to_its_address_and_nothing_else():
    failed = Move(7, 1, S.RUNNING, S.FAILED, 9, "exit code 3")
    assert found(failed) == ("ann-laptop", OWN, "job.failed", "Failed")
    assert not found(failed, callback_url=None)
    assert not found(failed, parent_id=3)
    others = ((S.SUBMITTED, S.RUNNING), (S.RUNNING, S.QUEUED), (S.COMPLETED, S.CLEANED))
    for before, to in others:
        assert not found(Move(7, 1, before, to, 9, ""))


def test_tries_are_spread_over_almost_a_day_and_a_receiver_may_ask_for_a_later_one_or_none():
    def wait(number: int, **asked) -> float | None:
        failed = Try(number, 0, 0.1, 500, "answered 500", **asked)
        return next_try_s(failed, lambda low, high: (low + high) / 2)

    waits = [*iter(map(wait, itertools.count(1)).__next__, None)]
    assert len(waits) == 10
    assert waits == sorted(waits)
    assert 0.9 * 86_400 < sum(waits) * 1.1 < 1.1 * 86_400
    asked = [*(wait(1, retry_after_s=one) for one in (3_600, 1, 1e9)), wait(1, is_final=True)]
    assert [waits[0], *asked] == [5, 3_600, 5, 86_400, None]


TARGETS = {
    "https://Portal.Example.org/hook?x=1": ("portal.example.org", 443),
    "http://portal.example.org./": ("portal.example.org", 80),
    "http://a:8080": ("a", 8080),
    "https://[2001:db8::1]:8443/x": ("2001:db8::1", 8443),
    "http://10.1.2.3/": ("10.1.2.3", 80),
    "https://my_host.internal/x": ("my_host.internal", 443),
}


def test_an_address_names_a_machine():
    found = {url: webhook_target(url) for url in TARGETS}
    assert found == {url: WebhookTarget(*of) for url, of in TARGETS.items()}


NO_ADDRESSES = [
    *("", "example.org/x", "//example.org", "file:///etc/passwd", "gopher://example.org"),
    *("https://", "https:///x", "https://user@example.org", "https://:pw@example.org"),
    *("https://example.org/#x", "https://example.org:0/", "https://example.org:70000/"),
    *("https://example.org:x/", "https://exa mple.org/", "https://example.org/\r\nX-A: b"),
    *("https://example.org\\@127.0.0.1/", "https://exämple.org/", "https://[::1/"),
    *("https://[fe80::1%25eth0]/", "https://[v1.x]/", "https://127.1/", "https://0x7f.1/"),
    *("https://0x7f000001/", "https://2130706433/", "https://0177.0.0.1/", "https://1.2.3.4.5/"),
    *("https://-a/", "https://a..b/", "https://%31%32%37.0.0.1/"),
    "https://example.org/" + "x" * 2_000,
]


@each("url", NO_ADDRESSES)
def test_what_is_no_such_address_is_refused(url):
    with pytest.raises(ValueError, match=r".{10}"):
        webhook_target(url)


INWARDS = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.255"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.168.1.1"),
    *("192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255"),
    *("240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("::127.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:a00:1::1", "2001::1", "2001:db8::1", "fc00::1", "fd12:3456::1"),
    *("fe80::1", "fec0::1", "ff02::1", "100::1"),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "172.32.0.1", "192.169.0.1", "2606:4700::1111", "::ffff:8.8.8.8"),
    *("64:ff9b::8.8.8.8", "2002:808:808::1"),
]


@each("text, public", [*((one, False) for one in INWARDS), *((one, True) for one in PUBLIC)])
def test_only_addresses_of_the_internet_are_public(text, public):
    assert is_public(ip_address(text)) is public


def test_networks_and_hosts_can_be_allowed():
    allowed = AllowedTargets(("10.0.0.0/8", "fd00::/8", "192.168.1.7", "hooks.internal", "b:8443"))
    inside = ip_address("172.16.0.1")
    for host, port, address, may in (
        ("10.1.2.3", 80, None, True),
        ("x.example.org", 80, ip_address("10.1.2.3"), True),
        ("x.example.org", 80, ip_address("::ffff:10.1.2.3"), True),
        ("x.example.org", 80, ip_address("fd00::1"), True),
        ("192.168.1.7", 80, None, True),
        ("192.168.1.8", 80, None, False),
        ("hooks.internal", 80, inside, True),
        ("sub.hooks.internal", 80, inside, False),
        ("b", 8443, inside, True),
        ("b", 443, inside, False),
        ("x.example.org", 80, inside, False),
        ("x.example.org", 80, ip_address("8.8.8.8"), True),
    ):
        why = allowed.refusal(WebhookTarget(host, port), address)
        assert (why is None) is may, (host, port, address)
        assert why is None or "webhook_allow" in why


@each("word", ["10.0.0.0/33", "10.0.0.1/8", "a b", "https://x", "x:0", "x:y"])
def test_what_cannot_be_allowed(word):
    with pytest.raises(ValueError, match="neither a network"):
        AllowedTargets((word,))
