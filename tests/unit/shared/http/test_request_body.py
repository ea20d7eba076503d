"""Which content types are taken: those that aiohttp's parser reads quickly, and as we read them."""

from __future__ import annotations

import random  # noqa: TID251 - with a seed

import pytest
from aiohttp.helpers import parse_content_type

from shared.http.refusals import Denied
from shared.http.request_body import _CHARSETS, _check_type

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


@pytest.mark.parametrize(
    "header",
    [
        "a/b;" * 2_000,
        "a/b;" + '"' * 8_000,
        "a/b" + "(" * 200,
        "a/b; x=" + "a" * 300,
        'a/b; x="a',
        "a/b; charset==?utf-8?q?punycode?=",
        'a/b; x="\\"; charset=punycode; y="',
    ],
)
def test_what_is_dear_to_read_is_refused(header: str) -> None:
    with pytest.raises(Denied) as refused:
        _check_type(header)
    assert refused.value.code == "content_type"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "application/json",
        "application/json;charset=UTF-8",
        'application/json; charset="utf-8"; profile="https://example.org/a;b"',
        "multipart/form-data; boundary=----WebKitFormBoundaryTKoBC8tL5XM1dVbC",
        "multipart/form-data; boundary=" + "b" * 200,
        'multipart/form-data; boundary="a(b)c"',
        "multipart/form-data;boundary=----=_Part_12_345.678",
        "text/plain; ",
        "json",
    ],
)
def test_what_clients_send_is_taken(header: str) -> None:
    _check_type(header)
