"""How many may be connected, and who makes room for whom."""

from __future__ import annotations

import pytest

from shared.http.connections import (
    ConnectionLimits,
    Connections,
    ReadThrottle,
    connection_limits,
    peer_of,
)


class Line:
    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def table(connections: int = 4, per_peer: int = 2, loopback_too: bool = False) -> Connections:
    return Connections(ConnectionLimits(connections, per_peer, loopback_too, 3, 2, 1))


def come(found: Connections, peer: str) -> Line | None:
    """One that is let in; None: it is not."""
    if not found.admit(peer):
        return None
    line = Line()
    found.add(line, peer)
    return line


def test_the_oldest_idle_one_of_whoever_has_most_makes_room():
    found = table(per_peer=4)
    first, second, third = (come(found, "10.0.0.1") for _ in range(3))
    other = come(found, "10.0.0.2")
    assert first is not None
    assert second is not None
    assert other is not None
    found.busy(first)
    assert come(found, "10.0.0.3") is not None
    assert (first.dropped, second.dropped, other.dropped) == (False, True, False)
    found.idle(first)  # it has been idle for the shortest time now
    assert come(found, "10.0.0.4") is not None
    assert third is not None
    assert (third.dropped, first.dropped) == (True, False)
    assert len(found) == 4


def test_an_address_with_its_share_makes_room_among_its_own():
    found = table(connections=10)
    first, second = come(found, "10.0.0.1"), come(found, "10.0.0.1")
    other = come(found, "10.0.0.2")
    assert first is not None
    assert second is not None
    assert other is not None
    assert come(found, "10.0.0.1") is not None
    assert (first.dropped, other.dropped) == (True, False)


def test_who_has_no_idle_one_gets_no_more():
    found = table(connections=10)
    for line in (come(found, "10.0.0.1"), come(found, "10.0.0.1")):
        assert line is not None
        found.busy(line)
    assert come(found, "10.0.0.1") is None
    assert come(found, "10.0.0.2") is not None


@pytest.mark.parametrize("loopback_too", [False, True])
def test_this_machines_own_addresses_count_only_if_that_is_asked_for(loopback_too):
    found = table(connections=10, loopback_too=loopback_too)
    lines = [come(found, "127.0.0.1") for _ in range(5)]
    assert sum(line is not None and line.dropped for line in lines) == (3 if loopback_too else 0)


def test_full_of_work_is_full():
    found = table(connections=2)
    for peer in ("10.0.0.1", "10.0.0.2"):
        line = come(found, peer)
        assert line is not None
        found.busy(line)
    assert come(found, "10.0.0.3") is None


def test_what_has_gone_is_not_counted():
    found = table(connections=2)
    for _ in range(10):
        line = come(found, "10.0.0.1")
        assert line is not None
        found.remove(line)
        found.remove(line)
        found.idle(line)  # too late
    assert len(found) == 0
    assert not found.close_idle()


@pytest.mark.parametrize("files", [64, 100, 256, 300, 1024, 20_000, 1 << 20])
@pytest.mark.parametrize("own", [0, 200])
def test_descriptors_are_left_for_the_files_of_requests_and_for_own_work(files, own):
    found = connection_limits(files, own=own)
    assert found.waits_per_caller <= found.waits <= found.requests < found.connections
    assert found.per_peer < found.connections
    if files >= 256 and files > 2 * own:
        assert files - found.connections - found.requests >= max(own, 64)


def test_a_place_is_taken_before_the_connection_is_made_and_can_be_given_back():
    found = table(connections=10)
    assert found.admit("10.0.0.1")
    assert found.admit("10.0.0.1")
    assert not found.admit("10.0.0.1")  # accepted in one go, none of them made yet
    found.release("10.0.0.1")
    assert found.admit("10.0.0.1")
    assert len(found) == 2


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


def test_settings_lower_the_number_and_never_pass_what_fits():
    assert connection_limits(20_000, most=100).connections == 100
    assert connection_limits(300, most=100_000).connections == connection_limits(300).connections
    assert connection_limits(20_000, most=100, per_peer=7).per_peer == 7


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::"),
        (("2001:db8:1:2::1", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
        (("::1", 5, 0, 0), "::1"),
        ("", "unix"),
        (None, "unix"),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_one_host(address, peer):
    assert peer_of(address) == peer
