"""Who calls: tokens, hosts and origins in the settings, which proxies are believed, how often one
may ask, which content types are taken; tokens, tickets and links, whole and for what they are good.
"""

import random  # noqa: TID251 - with a seed
import string
from itertools import product
from typing import Any

import pytest
from aiohttp.helpers import parse_content_type
from aiohttp.test_utils import make_mocked_request
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict
from pydantic import ValidationError

import client_agent.settings.agent
import server.settings.load
from server.domain import tokens
from server.domain.permits import Link, Login, PermitRefused, Permits, Session, Shows, Ticket
from server.domain.tokens import ID_LENGTH, ID_LETTERS, LETTERS, SECRET_LENGTH, BadToken, text_of
from server.settings.tables import ServerTable
from shared.clock import SECOND
from shared.http import rate_limits
from shared.http.proxies import TrustedProxies
from shared.http.rate_limits import RateLimits
from shared.http.refusals import Denied
from shared.http.request_body import _CHARSETS, _check_type
from shared.principals import Principal, Role, Scope
from shared.settings.base import SettingsError
from shared.units.rates import UNLIMITED, Rate
from tests.kit.clock import SimClock
from tests.kit.each import each

# -- settings

GOOD = "x" * 16
GUESSED = ("", " ", "short-secret", "secret" + "x" * 9, "secret in words", "ä" * 20)


@pytest.fixture(params=["server", "agent"])
def table(request):
    return request.param


@pytest.fixture
def loaded(table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def load(text: str):
        file = tmp_path / "settings.toml"
        file.write_text(f"[{table}]\n{text}\n")
        if table == "server":
            return server.settings.load.read(file, {}, {}).server
        return client_agent.settings.agent.load(file, {}, {})

    return load


@each(
    "setting, file, said",
    [
        *((f"tokens = ['{GOOD}', '{bad}']", None, "tokens: number 2 has") for bad in GUESSED),
        ("tokens = {{ file = '{}' }}", "", "there is no token in it"),
        ("tokens = {{ file = '{}' }}", "\n \n\n", "there is no token in it"),
        ("tokens = {{ file = '{}' }}", f"{GOOD}\n\nsecret\n", "line 3 has 6 characters"),
        *(
            (f"allowed_hosts = ['{host}']", None, "is not the name of a host")
            for host in ("a b", "http://x", "x/y", "", "**.x")
        ),
        *(
            (f"allowed_origins = ['{origin}']", None, "is not an origin")
            for origin in ("x.org", "https://x.org/path", "*", "null", "ftp://x", "https://")
        ),
    ],
)
def test_guessed_tokens_and_no_hosts_are_refused(loaded, table, tmp_path, setting, file, said):
    if table == "agent" and "origins" in setting:
        return  # no page calls an agent
    if file is not None:
        (tmp_path / "tokens").write_text(file)
        setting = setting.format(tmp_path / "tokens")
    with pytest.raises(SettingsError, match=said) as refusal:
        loaded(setting)
    assert "secret" not in str(refusal.value).replace("import secrets; print(secrets.", "")


def test_tokens_come_from_settings_and_files(loaded, table, tmp_path, monkeypatch):
    (tmp_path / "tokens").write_text(f"{'y' * 16}\r\n\n  {'z' * 16}\n")
    found = loaded(f"tokens = ['{GOOD}', {{ file = '{tmp_path}/tokens' }}]")
    assert found.all_tokens() == [GOOD, "y" * 16, "z" * 16]
    assert GOOD not in repr(found)
    monkeypatch.setenv(f"FERRYMAN_{table.upper()}__TOKENS__FILE", f"{tmp_path}/tokens")
    assert loaded(f"tokens = ['{GOOD}']").all_tokens() == ["y" * 16, "z" * 16]


HERE, NETWORKS = "127.0.0.1", ("127.0.0.1", "10.0.0.0/8", "fd00::/8")


@each(
    ("peer", "trusted", "headers", "expected"),
    [
        (HERE, NETWORKS, ("192.0.2.7",), "192.0.2.7"),
        (HERE, NETWORKS, ("192.0.2.7, 10.1.1.1",), "192.0.2.7"),
        (HERE, NETWORKS, ("192.0.2.7", "10.1.1.1"), "192.0.2.7"),
        (HERE, NETWORKS, ("198.51.100.9, 192.0.2.7",), "192.0.2.7"),
        (HERE, NETWORKS, ("10.2.2.2, 10.1.1.1",), "10.2.2.2"),
        ("fd00::1", NETWORKS, ("2001:db8:1:2:3::4",), "2001:db8:1:2::"),
        (HERE, NETWORKS, ("::ffff:192.0.2.7",), "192.0.2.7"),
        (HERE, NETWORKS, (), HERE),
        (HERE, NETWORKS, ("",), HERE),
        (HERE, NETWORKS, ("192.0.2.7, unknown",), HERE),
        (HERE, NETWORKS, ("192.0.2.7, unknown, 10.1.1.1",), "10.1.1.1"),
        # Nobody else says where a request comes from.
        ("192.0.2.1", NETWORKS, ("192.0.2.7",), "192.0.2.1"),
        ("unix", NETWORKS, ("192.0.2.7",), "unix"),
        (HERE, (), ("192.0.2.7",), HERE),
    ],
)
def test_the_list_is_believed_as_far_as_trusted_proxies_wrote_it(peer, trusted, headers, expected):
    given = CIMultiDict([("X-Forwarded-For", one) for one in headers])
    request = make_mocked_request("GET", "/", given)
    assert TrustedProxies(trusted).client(peer, request) == expected


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"'proxy\.example\.org' is neither an address nor a"):
        ServerTable(trusted_proxies=("127.0.0.1", "proxy.example.org"))


def limits(rate: Rate, clock: SimClock) -> RateLimits:
    return RateLimits(lambda principal: (principal.name, rate), clock)


def taken(of: RateLimits, name: str = "ann", most: int = 100) -> int:
    """How many requests are let through, one after the other at the same moment."""
    caller = Principal(name, Role.PORTAL)
    for number in range(most):
        try:
            of.take(caller)
        except Denied:
            return number
    return most


async def test_as_many_at_once_as_the_number_and_then_as_the_rate_brings() -> None:
    clock = SimClock()
    of = limits(Rate(6, "m"), clock)
    assert taken(of) == 6
    for passed_s, retry_after_s in ((0.0, "10"), (9.0, "1")):
        await clock.advance(passed_s)
        with pytest.raises(Denied) as refused:
            of.take(Principal("ann", Role.PORTAL))
        assert refused.value.headers == {"Retry-After": retry_after_s}
        assert (refused.value.status, refused.value.code) == (429, "rate_limited")
    for passed_s, more in ((1.0, 1), (3_600.0, 6)):
        await clock.advance(passed_s)
        assert taken(of) == more


async def test_each_caller_has_its_own_and_only_so_many_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(rate_limits, "_REMEMBERED", 5)
    assert taken(limits(UNLIMITED, SimClock())) == 100
    of = limits(Rate(2, "s"), SimClock())
    for number in range(50):
        assert taken(of, f"caller-{number}") == 2
    assert len(of._buckets._buckets) == 5
    assert taken(of, "caller-49") == 0


# -- content types

BITS = [
    "charset", "CHARSET", "charset*", "charset*0", "=", "=", "punycode", "utf-8", ";", ";", " ",
    '"', '"', "'", "''", "*", "x", "/", "\t", "a=", "=?utf-8?q?", "?=", ",", "(", ")", "\\", "é",
    "\udc80", "utf-8'en'", "%70", "<", "@", "boundary", "[", ":", "%", "=3B",
]  # fmt: skip


def test_no_charset_hides_from_the_check() -> None:
    chance, taken = random.Random(1), 0
    for _ in range(5_000):
        header = "a/b" + "".join(chance.choices(BITS, k=chance.randrange(1, 12)))
        try:
            _check_type(header)
        except Denied:
            continue
        taken += 1
        charset = parse_content_type.__wrapped__(header)[1].get("charset")
        assert charset is None or charset.lower() in _CHARSETS, header
    assert taken > 1_000


DEAR = [
    *("a/b;" * 2_000, "a/b;" + '"' * 8_000, "a/b" + "(" * 200, "a/b; x=" + "a" * 300),
    *('a/b; x="a', "a/b; charset==?utf-8?q?punycode?=", 'a/b; x="\\"; charset=punycode; y="'),
]
SENT = [
    *("", "application/json", "application/json;charset=UTF-8", "text/plain; ", "json"),
    'application/json; charset="utf-8"; profile="https://example.org/a;b"',
    "multipart/form-data; boundary=----WebKitFormBoundaryTKoBC8tL5XM1dVbC",
    "multipart/form-data; boundary=" + "b" * 200,
    'multipart/form-data; boundary="a(b)c"',
    "multipart/form-data;boundary=----=_Part_12_345.678",
]


def test_what_is_dear_to_read_is_refused_and_what_clients_send_is_taken() -> None:
    for header in SENT:
        _check_type(header)
    for header in DEAR:
        with pytest.raises(Denied) as refused:
            _check_type(header)
        assert refused.value.code == "content_type"


# -- texts that give access: that they end in time, and with the token that made them, is asked
# over HTTP

NOW = 1_000 * SECOND
PERMITS = Permits(b"k" * 32)
BOTH: dict[str, Any] = {"issued_by": "portal", "expires_at": NOW + SECOND}
MORE: dict[str, Any] = {"fields": {"tags": "ä,b"}, "return_to": "https://portal.example.org/"}
TICKET = Ticket(**BOTH, id="t1", user_id="ann", token_id="abc", max_bytes=10, **MORE)
LINK = Link(**BOTH, job_id=7, shows=Shows.FILE, path="out/ä b.txt", issuer="user ann")
LOGIN = Login(id="l1", expires_at=NOW + SECOND, token_digest="digest")
SESSION = Session(expires_at=NOW + SECOND, token_id="abc", ended_before=2)
GIVEN: dict[Any, Any] = {type(one): one for one in (TICKET, LINK, LOGIN, SESSION)}


@each("permit", GIVEN.values())
def test_what_was_signed_is_read_again_and_refused_with_any_character_changed(permit) -> None:
    text = PERMITS.text(permit)
    assert set(text) <= set(string.ascii_letters + string.digits + "-_.")
    assert PERMITS.read(type(permit), text, NOW) == permit
    for at in range(len(text)):
        for other in {"A", "B", ".", "=", "\n", "é", ""} - {text[at]}:
            changed = text[:at] + other + text[at + 1 :]
            with pytest.raises(PermitRefused, match="not valid") as refused:
                PERMITS.read(type(permit), changed, NOW)
            assert refused.value.code.endswith("_invalid")


@settings(max_examples=25)
@given(st.text())
def test_any_other_text_is_refused(text) -> None:
    for one in (text, text + ".", "." + text, PERMITS.text(TICKET) + text + "."):
        for kind in GIVEN:
            with pytest.raises(PermitRefused):
                PERMITS.read(kind, one, NOW)


def test_none_is_another_no_other_server_is_believed_and_who_has_one_may_do_that_only() -> None:
    for kind, (other, permit) in product(GIVEN, GIVEN.items()):
        permits = Permits(b"o" * 32) if kind is other else PERMITS
        with pytest.raises(PermitRefused, match="not valid"):
            PERMITS.read(kind, permits.text(permit), NOW)
    ticket, link = TICKET.principal(), LINK.principal()
    assert (link.name, link.caller) == ("portal (link to job 7)", "user ann")
    assert (ticket.name, ticket.role, ticket.acts_as) == ("portal", Role.TICKET, "ann")
    assert [scope for scope in Scope if ticket.may(scope)] == [Scope.SUBMIT]
    assert (link.role, link.job_id) == (Role.LINK, 7)
    assert [scope for scope in Scope if link.may(scope)] == [Scope.READ]


IDS = st.text(ID_LETTERS, min_size=ID_LENGTH, max_size=ID_LENGTH)
SECRETS = st.text(LETTERS, min_size=SECRET_LENGTH, max_size=SECRET_LENGTH)
TOKEN = text_of("0123456789", "s" * SECRET_LENGTH)


@given(IDS, SECRETS, st.data())
def test_a_token_is_read_as_it_was_made_and_a_wrong_letter_is_noticed(token_id, secret, data):
    text = text_of(token_id, secret)
    assert text.startswith(f"ferryman_{token_id}_{secret}")
    assert tokens.read(text) == (token_id, secret)
    at = data.draw(st.integers(len("ferryman_"), len(text) - 1))
    other = data.draw(st.sampled_from(sorted(set(LETTERS) - {text[at]})))
    with pytest.raises(BadToken, match="it is mistyped"):
        tokens.read(text[:at] + other + text[at + 1 :])


@each("text", [TOKEN[:-1], TOKEN + "x", "ferryman_", TOKEN + "\n"])
def test_a_token_that_is_not_whole_is_said_to_be_that(text: str) -> None:
    assert TOKEN == "ferryman_0123456789_" + "s" * 32 + "274pok", "the checksum is of its letters"
    with pytest.raises(BadToken, match=f"has 58 characters, this one {len(text)}") as refusal:
        tokens.read(text)
    assert "sss" not in str(refusal.value)
