"""Everything a form can be refused for, each naming its part, and nothing left on the disk."""

from __future__ import annotations

import pytest

from shared.multipart.parser import FormLimits, FormRefused
from shared.multipart.receive import receive
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


CASES = [
    # what a form must have
    (form_of(), 400, "no_file", None, "no file"),
    (form_of(text_part("user_id", "1")), 400, "no_file", None, "no file"),
    (form_of(part('name="f"; filename=""')), 400, "no_file", None, "no file"),
    (form_of(file_part("x")), 400, "no_run_sh", None, "no run.sh at its root"),
    # names
    (form_of(RUN, file_part("../x")), 400, "unsafe_name", "../x", "“../x”"),
    (form_of(RUN, file_part("/etc/x")), 400, "unsafe_name", "/etc/x", "absolute"),
    (form_of(RUN, file_part("a\0b")), 400, "unsafe_name", "a\0b", "“a\\x00b”: it contains a NUL"),
    (form_of(RUN, file_part("a\x01b")), 400, "unsafe_name", "a\x01b", "control"),
    (form_of(RUN, file_part("a%0Ab")), 400, "unsafe_name", "a\nb", "control"),
    (form_of(RUN, file_part("C:\\a\\b")), 400, "unsafe_name", "C:\\a\\b", "it contains a"),
    (form_of(RUN, file_part("d\\x")), 400, "unsafe_name", "d\\x", "backslash"),
    (form_of(RUN, file_part("x" * 300)), 400, "unsafe_name", "x" * 300, "longer than 255"),
    (form_of(RUN, RUN), 400, "duplicate_name", "run.sh", "there twice"),
    (form_of(RUN, file_part("run.sh/x")), 400, "file_and_folder", "run.sh/x", "is a file"),
    (form_of(RUN, part('name="f"; filename=""', b"x")), 400, "no_file_name", "f", "without a name"),
    (form_of(RUN, part(b'name="f"; filename="\xff"')), 400, "bad_utf8", None, "part 2"),
    # too much
    (form_of(RUN, *[file_part(f"{i}") for i in range(20)]), 413, "too_many_files", None, "20"),
    (
        form_of(RUN, *[text_part(f"f{i}", "") for i in range(4)]),
        413,
        "too_many_fields",
        "f3",
        "more than 3 fields",
    ),
    (form_of(text_part("f", "x" * 51), RUN), 413, "field_too_long", "f", "longer than 50 bytes"),
    (form_of(RUN, file_part("big", b"x" * 100_000)), 413, "too_large", "big", "limit of 100000"),
    (form_of(*[text_part("f", "")] * 2, RUN), 400, "duplicate_field", "f", "“f” is there twice"),
    (form_of(text_part("f", b"\xff"), RUN), 400, "bad_utf8", "f", "not valid UTF-8"),
    # headers
    (form_of(RUN, part(f'name="{"x" * 999}"')), 400, "bad_header", None, "part 2"),
    (b"--" + B + b"\r\nX: " + b"x" * 5000, 400, "bad_header", None, "part 1"),
    (b"--" + B + b"\r\n" + b"x" * 5000, 400, "bad_header", None, "part 1"),
    (b"--" + B + b"\r\n" + b"X: y\r\n" * 900, 400, "bad_header", None, "part 1"),
    (
        b"--" + B + b"\r\n" + b"".join(b"X%d: %s\r\n" % (i, b"y" * 300) for i in range(4)),
        400,
        "bad_header",
        None,
        "longer than 1000 bytes",
    ),
    (b"--" + B + b"\r\nX:" + b" " * 5000, 400, "bad_header", None, "part 1"),
    (
        b"--" + B + b"\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(900)),
        400,
        "bad_header",
        None,
        "part 1",
    ),
    (form_of(b"--" + B + b"\r\n\r\nx\r\n"), 400, "bad_header", None, "no Content-Disposition"),
    (form_of(b"--" + B + b"\r\nX Y: 1\r\n\r\nx\r\n"), 400, "bad_header", None, "part 1"),
    (form_of(RUN, part("x")), 400, "bad_header", None, "part 2 of the form"),
    (
        form_of(part('name="f"; filename="run.sh"', b"", b"Content-Transfer-Encoding: base64")),
        400,
        "bad_header",
        "run.sh",
        "Content-Transfer-Encoding",
    ),
    (
        form_of(part('name="f"', b"", b'Content-Disposition: form-data; name="g"')),
        400,
        "bad_header",
        None,
        "two content-disposition headers",
    ),
    # around the parts
    (b"", 400, "body_cut_short", None, "cut short"),
    (b"hello", 400, "no_first_boundary", None, "does not begin with the boundary"),
    (b"preamble\r\n" + form_of(RUN), 400, "no_first_boundary", None, "does not begin"),
    (b"\r\n" + b"x" * 5000, 400, "no_first_boundary", None, "the body"),
    (b"\r\n" * 3000, 400, "no_first_boundary", None, "too many bytes before"),
    (b"--" + B + b"X\r\n", 400, "no_first_boundary", None, "does not begin"),
    (form_of(RUN)[: -len(B) - 6], 400, "body_cut_short", "run.sh", "in the middle of part 1"),
    (form_of(RUN)[:-3], 400, "body_cut_short", "run.sh", "without its closing boundary"),
    (RUN[:30], 400, "body_cut_short", None, "in the middle of part 1"),
    (RUN + b"--" + B + b" x", 400, "malformed", "run.sh", "malformed behind part 1"),
    # archives
    (form_of(file_part("a.zip", ZIP, "bundle"), RUN), 400, "archive_and_files", "run.sh", "only"),
    (form_of(RUN, file_part("a.zip", ZIP, "bundle")), 400, "archive_and_files", "a.zip", "only"),
    (
        form_of(*[file_part(f"{i}.zip", ZIP, "bundle") for i in range(2)]),
        400,
        "archive_and_files",
        "1.zip",
        "the only file",
    ),
    (form_of(file_part("a.zip", ZIP, "file")), 400, "no_run_sh", None, "field named bundle"),
    (form_of(file_part("a.zip", ZIP[:-9], "bundle")), 400, "truncated", "a.zip", "“a.zip”"),
    (form_of(file_part("a.zip", bytes(100_001), "bundle")), 413, "too_large", "a.zip", "100000"),
    (form_of(file_part("a.zip", b"x", "bundle")), 400, "not_an_archive", "a.zip", "no archive"),
    (
        form_of(file_part("a.tar", tarred({"run.sh": b"", "../x": b""}), "bundle")),
        400,
        "unsafe_name",
        "../x",
        "“../x”",
    ),
    (
        form_of(file_part("a.tgz", tarred({"x": bytes(200_000)}, "w:gz"), "bundle")),
        413,
        "too_large",
        "x",
        "limit of 100000 bytes",
    ),
    (
        form_of(file_part("a.zip", zipped({f"{i}": b"" for i in range(21)}), "bundle")),
        413,
        "too_many_files",
        "a.zip",
        "more than 20 files",
    ),
]


@pytest.mark.parametrize("piece", [65_536, 1, 19], ids=["at once", "bytewise", "in pieces"])
@pytest.mark.parametrize(("body", "status", "code", "named", "words"), CASES)
async def test_a_bad_form_is_refused_by_name_and_leaves_nothing(
    tmp_path, body, status, code, named, words, piece
):
    if piece == 1 and len(body) > 10_000:
        piece = 997
    refused = await refusal(tmp_path, body, piece=piece)
    assert (refused.status, refused.code) == (status, code)
    assert refused.part == named
    assert words in refused.message
    refused.message.encode()


@pytest.mark.parametrize(
    ("content_type", "status", "code"),
    [
        ("application/json", 415, "not_multipart"),
        ("", 415, "not_multipart"),
        ("multipart/form-data", 400, "bad_boundary"),
        ("multipart/form-data; boundary=other", 400, "no_first_boundary"),
    ],
)
async def test_a_body_that_is_no_form_is_refused(tmp_path, content_type, status, code):
    refused = await refusal(tmp_path, form_of(RUN), content_type=content_type)
    assert (refused.status, refused.code) == (status, code)


@pytest.mark.parametrize(("off", "words"), [(-1, "more than"), (1, "of the"), (5000, "of the")])
async def test_a_declared_length_that_lies_is_refused(tmp_path, off, words):
    body = form_of(RUN)
    refused = await refusal(tmp_path, body, length=len(body) + off, piece=10)
    assert (refused.status, refused.code) == (400, "wrong_length")
    assert words in refused.message


async def test_a_declared_length_that_cannot_fit_is_refused_before_the_body_is_read(tmp_path):
    async def body():
        yield pytest.fail("the body was read")

    with pytest.raises(FormRefused) as caught:
        await receive(body(), FORM, 10**9, staging=tmp_path / "staged", limits=LIMITS)
    assert (caught.value.status, caught.value.code) == (413, "too_large")


async def test_what_follows_the_form_is_ignored_but_not_without_end(tmp_path):
    refused = await refusal(tmp_path, form_of(RUN) + b"x" * 5000, piece=500)
    assert (refused.status, refused.code) == (400, "trailing_data")
    assert "too many bytes behind" in refused.message


async def test_a_form_of_headers_only_is_bounded(tmp_path):
    # Within the limits one by one, but together more than the files may need around them.
    ignored = part('name="f"; filename=""', b"", b"X: " + b"x" * 900) * 200
    refused = await refusal(tmp_path, form_of(ignored, RUN))
    assert (refused.status, refused.code) == (413, "too_much_overhead")


async def test_a_field_that_the_caller_refuses_ends_the_form_there(tmp_path):
    taken = 0

    async def endless():
        nonlocal taken
        yield text_part("service", "nope") + file_part("run.sh")
        while True:
            taken += 1
            yield file_part(f"{taken}", b"x")

    def on_field(name, value, fields):
        assert fields == {name: value}
        raise PermissionError("no such service")

    with pytest.raises(PermissionError):
        await receive(
            endless(), FORM, None, staging=tmp_path / "s", limits=LIMITS, on_field=on_field
        )
    assert taken == 0
    assert list(tmp_path.iterdir()) == []


async def test_a_caller_may_refuse_when_the_first_file_begins(tmp_path):
    def on_first_file(fields):
        raise PermissionError(str(fields))

    body = form_of(text_part("a", "1"), RUN, text_part("b", "2"))
    with pytest.raises(PermissionError, match=r"\{'a': '1'\}"):
        await receive(
            in_pieces(body),
            FORM,
            None,
            staging=tmp_path / "s",
            limits=LIMITS,
            on_first_file=on_first_file,
        )
    assert list(tmp_path.iterdir()) == []
