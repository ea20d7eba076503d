"""Limits of connections, which is closed for a new one, and of answers that nobody reads."""

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from shared.http.authentication import CALLER
from shared.http.connections import (
    ConnectionLimits,
    Connections,
    ReadThrottle,
    connection_limits,
    peer_of,
)
from shared.http.protocol import RELEASE, UnreadAnswers
from shared.http.refusals import Denied
from tests.kit.each import each


class FakeConnection:
    dropped = False

    def drop(self) -> None:
        self.dropped = True


def table(connections: int = 4, per_peer: int = 2) -> Connections:
    return Connections(ConnectionLimits(connections, per_peer, 3, 2, 1))


def connect(connections: Connections, *peers: str, busy: bool = False) -> list[FakeConnection]:
    """New connections of these peers; without those that were not admitted."""
    found = []
    for peer in peers:
        if connections.admit(peer):
            found.append(FakeConnection())
            connections.add(found[-1], peer)
            if busy:
                connections.busy(found[-1])
    return found


A, B, C, D = (f"10.0.0.{number}" for number in range(1, 5))


def test_the_oldest_idle_connection_of_the_peer_with_most_is_closed():
    connections = table(per_peer=4)
    first, second, third, other = connect(connections, A, A, A, B)
    connections.busy(first)
    assert connect(connections, C)
    assert (first.dropped, second.dropped, other.dropped) == (False, True, False)
    connections.idle(first)  # it has been idle for the shortest time now
    assert connect(connections, D)
    assert (third.dropped, first.dropped, len(connections)) == (True, False, 4)


def test_an_address_at_its_limit_loses_an_idle_connection_of_its_own_or_gets_no_more():
    connections = table(connections=10)
    first, second, other = connect(connections, A, A, B)
    (third,) = connect(connections, A)
    assert (first.dropped, second.dropped, other.dropped) == (True, False, False)
    for connection in (second, third):
        connections.busy(connection)
    assert not connect(connections, A)
    assert connect(connections, B)


def test_when_all_are_busy_no_more_are_accepted_and_only_what_is_open_of_others_counts():
    connections = table(connections=2)
    assert len(connect(connections, A, B, busy=True)) == 2
    assert not connect(connections, C)
    lines = connect(table(connections=10), *["127.0.0.1"] * 5)
    assert [line.dropped for line in lines] == [False] * 5, "of this machine"
    connections = table(connections=2)
    for _ in range(10):
        (connection,) = connect(connections, A)
        connections.remove(connection)
        connections.remove(connection)
        connections.idle(connection)  # too late
    assert (len(connections), connections.close_idle()) == (0, False)
    connections = table(connections=10)
    # accepted in one go, none of them made yet
    assert [connections.admit(A) for _ in range(3)] == [True, True, False]
    connections.release(A)
    assert (connections.admit(A), len(connections)) == (True, 2)


@each("files", [64, 100, 256, 300, 1024, 20_000, 1 << 20])
@each("own", [0, 200])
def test_descriptors_are_left_for_the_files_of_requests_and_for_own_files(files, own):
    limits = connection_limits(files, own=own)
    assert limits.waits_per_caller <= limits.waits <= limits.requests < limits.connections
    assert limits.per_peer < limits.connections
    if files >= 256 and files > 2 * own:
        assert files - limits.connections - 2 * limits.requests >= max(own, 64)


def test_costly_reading_gets_a_quarter_of_the_time_all_together():
    share, at, spent = ReadThrottle(), 100.0, 0.0
    resting = [0.0] * 64
    while at < 110.0:
        due = min(range(64), key=resting.__getitem__)
        at = max(at, resting[due])
        at += 0.002
        spent += 0.002
        resting[due] = at + share.pause_s(at, 0.002)
    assert 0.2 < spent / 10.0 < 0.3


@each(
    ("address", "peer"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        *(((f"2001:db8:1:2:{one}", 5, 0, 0), "2001:db8:1:2::") for one in ("3:4:5:6", ":1")),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
        (("::1", 5, 0, 0), "::1"),
        *(("", "unix"), (None, "unix")),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_one_host(address, peer):
    assert peer_of(address) == peer


MIB = 1 << 20


def hold(unread: UnreadAnswers, caller: str, size: int, method: str = "GET") -> web.Request:
    CALLER.set(caller)
    request = make_mocked_request(method, "/")
    unread.hold(request, web.Response(body=bytes(size)))
    return request


def refused(unread: UnreadAnswers, caller: str, size: int) -> tuple[int, str]:
    with pytest.raises(Denied) as caught:
        hold(unread, caller, size)
    assert caught.value.headers["Retry-After"]
    return caught.value.status, caught.value.code


def test_callers_get_no_more_than_they_may_leave_unread_and_one_each_above_that_of_all() -> None:
    unread = UnreadAnswers(of_one=3 * MIB, of_all=100 * MIB)
    held = [hold(unread, "ann", MIB) for _ in range(3)]
    assert refused(unread, "ann", MIB) == (429, "unread_answers")
    hold(unread, "bob", MIB)
    held[0][RELEASE]()
    hold(unread, "ann", MIB)
    unread = UnreadAnswers(of_one=3 * MIB, of_all=4 * MIB)
    for name in ("ann", "bob"):
        hold(unread, name, 2 * MIB)
    cid = hold(unread, "cid", MIB)
    for name in ("ann", "bob", "cid"):
        assert refused(unread, name, MIB) == (503, "unread_answers")
    cid[RELEASE]()
    hold(unread, "cid", MIB)


def test_one_large_answer_and_what_was_done_are_always_sent_and_little_is_not_counted() -> None:
    unread = UnreadAnswers(of_one=MIB, of_all=MIB)
    hold(unread, "ann", 5 * MIB)[RELEASE]()
    hold(unread, "bob", 5 * MIB)
    hold(unread, "bob", MIB, "POST")
    assert RELEASE not in hold(unread, "bob", 60_000)
    request = make_mocked_request("GET", "/")
    unread.hold(request, web.StreamResponse())
    assert RELEASE not in request
