"""Whose request it is that a reverse proxy hands on."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from pydantic import ValidationError

from server.settings.tables import ServerTable
from shared.http.proxies import TrustedProxies

NETWORKS = ("127.0.0.1", "10.0.0.0/8", "fd00::/8")


def client(peer: str, *headers: str, trusted: tuple[str, ...] = NETWORKS) -> str:
    given = CIMultiDict([("X-Forwarded-For", one) for one in headers])
    return TrustedProxies(trusted).client(peer, make_mocked_request("GET", "/", given))


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        ("127.0.0.1", ("192.0.2.7",), "192.0.2.7"),
        ("127.0.0.1", ("192.0.2.7, 10.1.1.1",), "192.0.2.7"),
        ("127.0.0.1", ("192.0.2.7", "10.1.1.1"), "192.0.2.7"),
        ("127.0.0.1", ("198.51.100.9, 192.0.2.7",), "192.0.2.7"),
        ("127.0.0.1", ("10.2.2.2, 10.1.1.1",), "10.2.2.2"),
        ("fd00::1", ("2001:db8:1:2:3::4",), "2001:db8:1:2::"),
        ("127.0.0.1", ("::ffff:192.0.2.7",), "192.0.2.7"),
        ("127.0.0.1", (), "127.0.0.1"),
        ("127.0.0.1", ("",), "127.0.0.1"),
        ("127.0.0.1", ("192.0.2.7, unknown",), "127.0.0.1"),
        ("127.0.0.1", ("192.0.2.7, unknown, 10.1.1.1",), "10.1.1.1"),
    ],
)
def test_the_list_is_believed_as_far_as_trusted_proxies_wrote_it(peer, headers, expected) -> None:
    assert client(peer, *headers) == expected


@pytest.mark.parametrize("peer", ["192.0.2.1", "unix"])
def test_nobody_else_says_where_a_request_comes_from(peer) -> None:
    assert client(peer, "192.0.2.7") == peer
    assert client("127.0.0.1", "192.0.2.7", trusted=()) == "127.0.0.1"


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"'proxy\.example\.org' is neither an address nor a"):
        ServerTable(trusted_proxies=("127.0.0.1", "proxy.example.org"))
