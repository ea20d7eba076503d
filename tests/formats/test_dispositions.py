"""Headers of a form and of its parts, read as their senders mean them."""

from __future__ import annotations

import functools
from contextlib import suppress

import pytest
from aiohttp.helpers import content_disposition_header
from hypothesis import given
from hypothesis import strategies as st

from ferryman.upload import _disposition
from shared.multipart.headers import BadHeader, boundary_of, disposition, quotes_whole_names
from tests.kit.cost import steps
from tests.kit.each import each

NAMES = st.lists(st.sampled_from(["%", "%2F", "%22", "%0A", "2F", "a", '"', "é", "/", " "]))
NAMED = NAMES.map("".join) | st.text(max_size=30)


@each(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data ; charset=utf-8 ;  BOUNDARY="a b"', b"a b"),
        ("multipart/form-data;boundary=----WebKitFormBoundary7MA4", b"----WebKitFormBoundary7MA4"),
        ("multipart/form-data; boundary=abc;", b"abc"),
        *(
            (kind, "not_multipart")
            for kind in ("", "application/json", "multipart/mixed; boundary=x")
        ),
        ("multipart/form-data", "bad_boundary"),
        *(
            (f"multipart/form-data; boundary={boundary}", "bad_boundary")
            for boundary in ("", '""', '"x "', "ü", '"a\r\nb"', "x" * 201)
        ),
        ('multipart/form-data; boundary="x', "bad_header"),
        ("multipart/form-data; boundary=a; boundary=b", "bad_header"),
    ],
)
def test_the_boundary_is_found_or_the_content_type_refused(header, boundary):
    if isinstance(boundary, bytes):
        assert boundary_of(header) == boundary
        return
    with pytest.raises(BadHeader) as caught:
        boundary_of(header)
    assert caught.value.code == boundary


@each(
    ("header", "name", "filename"),
    [
        ('form-data; name="user_id"', "user_id", None),
        ("form-data; name=user_id", "user_id", None),
        ('Form-Data; Name="a"; FileName="b"', "a", "b"),
        ('form-data; name="f"; filename=""', "f", ""),
        ('form-data; filename="b"; name="f"', "f", "b"),
        ('form-data ;name = "f" ; filename = "b" ', "f", "b"),
        ('form-data; name="f"; filename="a;b=c.txt"', "f", "a;b=c.txt"),
        ('form-data; name="f"; filename="data/é漢.pdb"', "f", "data/é漢.pdb"),
        # browsers
        ('form-data; name="f"; filename="a%22b"', "f", 'a"b'),
        ('form-data; name="f"; filename="a%0D%0Ab"', "f", "a\r\nb"),
        ('form-data; name="f"; filename="100%25 a%20b"', "f", "100%25 a%20b"),
        ('form-data; name="f"; filename="C:\\dir\\file"', "f", "C:\\dir\\file"),
        # curl, formerly
        ('form-data; name="f"; filename="a\\"b"', "f", 'a"b'),
        ('form-data; name="f"; filename="a\\\\b"', "f", "a\\b"),
        # RFC 5987, as reqwest and urllib3 1 send it
        ("form-data; name=\"f\"; filename*=UTF-8''data%2F%C3%A9", "f", "data/é"),
        ("form-data; name*=utf-8''data%2Fin.pdb; filename=\"in.pdb\"", "data/in.pdb", "in.pdb"),
        ("form-data; name=f; filename=\"x\"; filename*=utf-8'en'%e2%82%ac", "f", "€"),
        ('form-data; name="f"; filename="page%2Findex.html"', "f", "page%2Findex.html"),
        ('form-data; name="f"; filename="50%25/a%2Fb"', "f", "50%25/a%2Fb"),
        # others
        ('form-data; name="f"; filename="x"; size=3; foo="bar"', "f", "x"),
    ],
)
def test_names_are_read_as_their_senders_mean_them(header, name, filename):
    found = disposition(header.encode())
    assert (found.name, found.filename) == (name, filename)


def test_only_aiohttp_quotes_whole_names():
    firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
    others = ("", "curl/8.5.0", "python-requests/2.31.0", "Python/3.11 httpx", firefox)
    assert quotes_whole_names("Python/3.11 aiohttp/3.9.1")
    for other in (*others, "not Python/3.11 aiohttp/3.9.1"):
        assert not quotes_whole_names(other), other


@given(filename=NAMED.filter(bool))
def test_what_aiohttp_and_our_own_client_send_is_what_they_meant(filename):
    sent = content_disposition_header("form-data", name="file", filename=filename)
    assert disposition(sent.encode(), quoted_whole=True).filename == filename
    own = _disposition("file", filename).removeprefix(b"\r\nContent-Disposition: ")
    for quoted_whole in (False, True):
        assert disposition(own, quoted_whole=quoted_whole).filename == filename


UNREADABLE = [
    *(b"", b'attachment; name="f"', b"form-data", b'form-data; filename="f"'),
    *(b'form-data; name="f', b'form-data; name="f"; filename="a\\"', b'form-data; name="f"x'),
    *(b'form-data; name="f"; name="g"', b'form-data; name="f"; filename="a"; filename="b"'),
    *(b'form-data; name="f"; =x', b'form-data; name="f"; filename'),
    b'form-data; name="f"; filename*0="a"; filename*1="b"',
    b"form-data; name=\"f\"; filename*=latin-1''a",
    b"form-data; name=\"f\"; filename*=UTF-8''%zz",
]
NO_UTF8 = [
    b"form-data; name=\"f\"; filename*=UTF-8''%ff",
    b"form-data; name=\"f\"; filename*=UTF-8''a%2F%FF",
    *(b'form-data; name="f"; filename="\xff"', b'form-data; name="\xe9"'),
]


@each("header", [*UNREADABLE, *NO_UTF8])
def test_a_disposition_that_cannot_be_read_for_certain_is_refused(header):
    with pytest.raises(BadHeader) as caught:
        disposition(header)
    assert caught.value.code == ("bad_utf8" if header in NO_UTF8 else "bad_header")


@given(st.binary(max_size=60).map(lambda rest: b"form-data; name=" + rest))
def test_any_bytes_are_read_or_refused(header):
    try:
        found = disposition(header)
    except BadHeader:
        return
    assert isinstance(found.name, str)


ESCAPED = [('"', "%22"), ("\r", "%0D"), ("\n", "%0A")]


@given(name=NAMED, filename=NAMED.filter(bool))
def test_what_a_browser_sends_is_what_it_meant(name, filename):
    """It leaves a percent sign as it is, so that some names look like others."""

    def sent(text: str) -> bytes:
        for character, escaped in ESCAPED:
            text = text.replace(character, escaped)
        return text.encode()

    def meant(text: str) -> str:
        for character, escaped in ESCAPED:
            text = text.replace(escaped, character)
        return text

    if "\\" in name + filename:
        return
    found = disposition(b'form-data; name="%s"; filename="%s"' % (sent(name), sent(filename)))
    assert (found.name, found.filename) == (meant(name), meant(filename))


@each("quoted_whole", [False, True])
@each(
    "header",
    [
        lambda n: b'form-data; name="f"; filename="' + b"%2F" * n + b'!"',
        lambda n: b"form-data; name=\"f\"; filename*=UTF-8''" + b"%2F" * n + b"%",
        lambda n: b'form-data; name="' + b"\\" * n,
        lambda n: b"form-data" + b"; a=" * n,
    ],
)
def test_reading_a_header_takes_time_in_proportion_to_its_length(header, quoted_whole):
    """With a pattern that backtracks a long one would take minutes, in a single step."""

    def read(text: bytes) -> None:
        with suppress(BadHeader):
            disposition(text, quoted_whole=quoted_whole)

    read(header(16_000))
    few, many = (steps(functools.partial(read, header(n))) for n in (500, 1000))
    assert many <= 2.1 * few + 50
