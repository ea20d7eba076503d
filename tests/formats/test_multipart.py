"""Forms: everything that is refused, by name and with nothing left; headers, as they are meant."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp.helpers import content_disposition_header
from hypothesis import given
from hypothesis import strategies as st

from ferryman.upload import _disposition
from shared.multipart.headers import BadHeader, boundary_of, disposition, quotes_whole_names
from shared.multipart.parser import FormLimits, FormParser, FormRefused
from shared.multipart.receive import Threads, receive
from tests.kit.each import each
from tests.kit.raw_archives import (
    BOUNDARY,
    FORM,
    file_part,
    form_of,
    in_pieces,
    part,
    tarred,
    text_part,
    zipped,
)
from tests.kit.waiting import turns

LIMITS = FormLimits(
    max_bytes=100_000, max_files=20, max_fields=3, max_field_bytes=50, max_header_bytes=1000
)
RUN = file_part("run.sh", b"echo\n")
ZIP = zipped({"run.sh": b""})
B = BOUNDARY.encode()


async def refusal(folder, body, *, content_type=FORM, length=None, piece=65_536, **options):
    """The refusal of a body, after which nothing is left."""
    with pytest.raises(FormRefused) as caught:
        await receive(
            in_pieces(body, piece),
            content_type,
            length,
            staging=folder / "staged",
            **{"limits": LIMITS, **options},
        )
    assert list(folder.iterdir()) == []
    return caught.value


def archive(name: str, content: bytes) -> bytes:
    return file_part(name, content, "bundle")


HEAD = b"--" + B + b"\r\n"
BASE64 = b"Content-Transfer-Encoding: base64"
TWICE = b'Content-Disposition: form-data; name="g"'
PADDING = part('name="f"; filename=""', b"", b"X: " + b"x" * 900)
TOO_MUCH = {"too_many_files", "too_many_fields", "field_too_long", "too_large", "too_much_overhead"}
"""They are 413, all others 400."""
CASES: list[tuple[list[bytes] | bytes, str, str | None, str]] = [
    # parts, or all of the body; code, part, what the message names
    ([], "no_file", None, "no file"),
    ([text_part("user_id", "1")], "no_file", None, "no file"),
    ([part('name="f"; filename=""')], "no_file", None, "no file"),
    ([file_part("x")], "no_run_sh", None, "no run.sh at its root"),
    # names; others: test_names.py, test_round_trip.py
    ([RUN, file_part("a\0b")], "unsafe_name", "a\0b", "“a\\x00b”: it contains a NUL"),
    ([RUN, file_part("a%0Ab")], "unsafe_name", "a\nb", "control"),
    ([RUN, file_part("C:\\a\\b")], "unsafe_name", "C:\\a\\b", "it contains a"),
    ([RUN, RUN], "duplicate_name", "run.sh", "there twice"),
    ([RUN, part('name="f"; filename=""', b"x")], "no_file_name", "f", "without a name"),
    ([RUN, part(b'name="f"; filename="\xff"')], "bad_utf8", None, "part 2"),
    # too much
    ([RUN, *[file_part(f"{i}") for i in range(20)]], "too_many_files", None, "20"),
    ([RUN, *[text_part(f"f{i}", "") for i in range(4)]], "too_many_fields", "f3", "than 3 fields"),
    ([text_part("f", "x" * 51), RUN], "field_too_long", "f", "longer than 50 bytes"),
    ([RUN, file_part("big", b"x" * 100_000)], "too_large", "big", "limit of 100000"),
    ([*[text_part("f", "")] * 2, RUN], "duplicate_field", "f", "“f” is there twice"),
    ([text_part("f", b"\xff"), RUN], "bad_utf8", "f", "not valid UTF-8"),
    # headers
    ([RUN, part(f'name="{"x" * 999}"')], "bad_header", None, "part 2"),
    (HEAD + b"X: " + b"x" * 5000, "bad_header", None, "part 1"),
    (HEAD + b"x" * 5000, "bad_header", None, "part 1"),
    (HEAD + b"X: y\r\n" * 900, "bad_header", None, "part 1"),
    (HEAD + b"X: %s\r\n" % (b"y" * 300) + b"Y: %s\r\n" % (b"y" * 900), "bad_header", None, "1000"),
    (HEAD + b"X:" + b" " * 5000, "bad_header", None, "part 1"),
    (HEAD + b"".join(b"X%d: y\r\n" % i for i in range(900)), "bad_header", None, "part 1"),
    ([HEAD + b"\r\nx\r\n"], "bad_header", None, "no Content-Disposition"),
    ([HEAD + b"X Y: 1\r\n\r\nx\r\n"], "bad_header", None, "part 1"),
    ([RUN, part("x")], "bad_header", None, "part 2 of the form"),
    ([part('name="f"; filename="a"', b"", BASE64)], "bad_header", "a", "Content-Transfer-Encoding"),
    ([part('name="f"', b"", TWICE)], "bad_header", None, "two content-disposition headers"),
    # around the parts
    (b"", "body_cut_short", None, "cut short"),
    (b"hello", "no_first_boundary", None, "does not begin with the boundary"),
    (b"preamble\r\n" + form_of(RUN), "no_first_boundary", None, "does not begin"),
    (b"\r\n" + b"x" * 5000, "no_first_boundary", None, "the body"),
    (b"\r\n" * 3000, "no_first_boundary", None, "too many bytes before"),
    (b"--" + B + b"X\r\n", "no_first_boundary", None, "does not begin"),
    (form_of(RUN)[: -len(B) - 6], "body_cut_short", "run.sh", "in the middle of part 1"),
    (form_of(RUN)[:-3], "body_cut_short", "run.sh", "without its closing boundary"),
    (RUN[:30], "body_cut_short", None, "in the middle of part 1"),
    (RUN + b"--" + B + b" x", "malformed", "run.sh", "malformed behind part 1"),
    # Within the limits one by one, but together more than the files may need around them.
    ([PADDING * 200, RUN], "too_much_overhead", None, ""),
    # archives
    ([archive("a.zip", ZIP), RUN], "archive_and_files", "run.sh", "only"),
    ([RUN, archive("a.zip", ZIP)], "archive_and_files", "a.zip", "only"),
    ([archive(f"{i}.zip", ZIP) for i in range(2)], "archive_and_files", "1.zip", "the only file"),
    ([file_part("a.zip", ZIP)], "no_run_sh", None, "field named bundle"),
    ([archive("a.zip", ZIP[:-9])], "truncated", "a.zip", "“a.zip”"),
    ([archive("a.zip", bytes(100_001))], "too_large", "a.zip", "100000"),
    ([archive("a.zip", b"x")], "not_an_archive", "a.zip", "no archive"),
    ([archive("a.tgz", tarred({"x": bytes(200_000)}, "w:gz"))], "too_large", "x", "100000 bytes"),
    ([archive("a.zip", zipped({f"{i}": b"" for i in range(21)}))], "too_many_files", "a.zip", "20"),
]


@each("piece", [65_536, 1, 19])
@each(("sent", "code", "named", "words"), CASES)
async def test_a_bad_form_is_refused_by_name(tmp_path, sent, code, named, words, piece):
    body = sent if isinstance(sent, bytes) else form_of(*sent)
    if piece == 1 and len(body) > 10_000:
        piece = 997
    refused = await refusal(tmp_path, body, piece=piece)
    status = 413 if code in TOO_MUCH else 400
    assert (refused.status, refused.code, refused.part) == (status, code, named)
    assert words in refused.message
    refused.message.encode()


async def test_a_body_that_is_no_form_or_of_another_length_is_refused(tmp_path):
    body = form_of(RUN)
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"content_type": "application/json"}, 415, "not_multipart"),
        ({"content_type": "multipart/form-data"}, 400, "bad_boundary"),
        ({"content_type": "multipart/form-data; boundary=other"}, 400, "no_first_boundary"),
        *(({"length": len(body) + off, "piece": 10}, 400, "wrong_length") for off in (-1, 1, 5000)),
        ({"length": 10**9}, 413, "too_large"),
    ]
    for how, status, code in cases:
        refused = await refusal(tmp_path, body, **how)
        assert (refused.status, refused.code) == (status, code), how


async def test_what_follows_the_form_is_ignored_but_not_without_end(tmp_path):
    refused = await refusal(tmp_path, form_of(RUN) + b"x" * 5000, piece=500)
    assert (refused.status, refused.code) == (400, "trailing_data")


async def test_a_field_or_a_file_that_the_caller_refuses_ends_the_form_there(tmp_path):
    taken = 0

    async def endless():
        nonlocal taken
        yield text_part("service", "nope") + file_part("run.sh")
        while True:
            taken += 1
            yield file_part(f"{taken}", b"x")

    def on_field(name, value, fields):
        raise PermissionError(str({name: value} | fields))

    def on_first_file(fields):
        raise PermissionError(str(fields))

    for refuses in ({"on_field": on_field}, {"on_first_file": on_first_file}):
        with pytest.raises(PermissionError, match=r"^\{'service': 'nope'\}"):
            await receive(endless(), FORM, None, staging=tmp_path / "s", limits=LIMITS, **refuses)
        assert (taken, list(tmp_path.iterdir())) == (0, [])


PART = b'--b\r\nContent-Disposition: form-data; name="x"; filename="f"\r\n\r\n\r\n'
MANY = FormLimits(max_bytes=1 << 30, max_files=100_000)


class Turns:
    """How many turns another task has had."""

    count = 0

    async def take(self) -> None:
        while True:
            await turns()
            self.count += 1


async def read_parts(staging: Path, count: int, **more: Any) -> None:
    async def body():
        yield PART * count  # in one chunk

    kind = "multipart/form-data; boundary=b"
    with pytest.raises(FormRefused):
        await receive(body(), kind, None, staging=staging, limits=MANY, **more)


async def test_a_form_of_many_parts_lets_others_run_and_forms(tmp_path, monkeypatch):
    """Of many such forms one is parsed at a time."""
    others, real, fed = Turns(), FormParser.feed, []

    def feed(form: FormParser, chunk: bytes) -> None:
        fed.append(others.count)
        real(form, chunk)

    task = asyncio.create_task(others.take())
    await read_parts(tmp_path / "s", 4000)
    assert others.count > 4000 // 200
    monkeypatch.setattr(FormParser, "feed", feed)
    more = {"threads": Threads(parsing=asyncio.Lock())}
    await asyncio.gather(*(read_parts(tmp_path / str(n), 1000, **more) for n in range(16)))
    task.cancel()
    assert len(fed) > 16 * 5
    assert max(fed.count(number) for number in set(fed)) <= 2


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
