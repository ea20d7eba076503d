"""Work in step with length: twice the input is twice the work, whoever made it.

Where a pattern backtracks, or something is read again for each of its parts, the longer one would
take minutes, in a single step.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ferryman.ignore import Pattern
from server.web.job.content import read_table, read_text
from server.web.job.lines import render
from shared.files.globs import Globs, check_pattern
from shared.files.names import PathSet, find_root, problems, safe_path
from shared.multipart.headers import BadHeader, disposition
from shared.multipart.parser import FormLimits, FormParser, FormRefused
from tests.kit.cost import steps
from tests.kit.each import each

Work = Callable[[int], object]


def of_names(paths: list[str]) -> None:
    tree = PathSet()
    for path in paths:
        tree.add(safe_path(path))
    tree.check()
    list(problems(paths))
    find_root(paths)


def of_outputs(pattern: str, n: int) -> None:
    Globs([check_pattern(pattern)]).matching("/".join(["a" * 255] * (n // 10)))


def of_ignored(pattern: str, n: int) -> None:
    parsed = Pattern.parse(pattern, "")
    assert parsed is not None
    parsed.fits("a/" * (n // 5) + "a" * 200)


def of_header(text: bytes) -> None:
    for quoted_whole in (False, True):
        with suppress(BadHeader):
            disposition(text, quoted_whole=quoted_whole)


def of_lines(part: str, n: int) -> None:
    render(part * n)


def of_cells(n: int) -> None:
    assert read_table(f"a\n1{' ' * 1_000 * n}x\n", at_end=True).numbers == [False]


def of_odd_letters(n: int) -> None:
    shown = read_text(("a\u200b" * n).encode(), 0, at_end=True).lines[0]
    assert shown.count('<span class="odd">\\u{200b}</span>') == n


class Ignored:
    """A listener that keeps nothing."""

    def field(self, name: str, value: str) -> None: ...
    def file_begins(self, part: Any) -> None: ...
    def file_data(self, data: Any) -> None: ...
    def file_ends(self) -> None: ...


MANY = FormLimits(max_bytes=1 << 30, max_files=100_000)


def of_form(shape: Callable[[int], tuple[bytes, bytes]], cut: int, n: int) -> None:
    boundary, body = shape(n)
    form = FormParser(boundary, MANY, Ignored())
    with suppress(FormRefused):
        for at in range(0, len(body), cut):
            form.feed(body[at : at + cut])


def short(b: bytes, content: bytes = b"") -> bytes:
    head = b'Content-Disposition: form-data; name="x"; filename="f"'
    return b"--%s\r\n%s\r\n\r\n%s\r\n" % (b, head, content)


LONG, DISPOSITION = b"b" * 199, b"--b\r\nContent-Disposition: form-data"
ALMOST, FIELD = b"\r\n--" + LONG[:-1], DISPOSITION + b'; name="f"\r\n\r\n'
FORMS: dict[str, Callable[[int], tuple[bytes, bytes]]] = {
    "a short boundary, almost there": lambda n: (b"b", short(b"b") + b"\r\n--a\r\n--" * n),
    "a short boundary, there but for its end": lambda n: (b"b", short(b"b") + b"\r\n--bx" * n),
    "a long boundary, almost there": lambda n: (LONG, short(LONG) + ALMOST * (n // 20)),
    "returns": lambda n: (b"b", short(b"b") + b"\r" * 4 * n),
    "hyphens": lambda n: (b"b", short(b"b") + b"-" * 4 * n),
    "parts without end": lambda n: (b"b", short(b"b") * (n // 10)),
    "fields": lambda n: (b"b", (FIELD + b"1\r\n") * n),
    "a field of digits": lambda n: (b"b", FIELD + b"9" * 20 * n),
    "headers without end": lambda n: (b"b", b"--b\r\n" + b"a: b\r\n" * n),
    "one header without end": lambda n: (b"b", b"--b\r\na: " + b"b" * 10 * n),
    "a header's name without end": lambda n: (b"b", b"--b\r\n" + b"a" * 10 * n),
    "a disposition of semicolons": lambda n: (b"b", DISPOSITION + b"; a=b" * n + b"\r\n\r\n"),
    "line ends before the first part": lambda n: (b"b", b"\r\n" * n),
    "padding behind a boundary": lambda n: (b"b", short(b"b") + b"\r\n--b" + b" " * 10 * n),
    "what follows the end": lambda n: (b"b", short(b"b") + b"--b--\r\n" + b"x\r\n" * n),
}
NAMES: list[Work] = [
    lambda n: of_names([f"f{i:06}" for i in range(n)]),
    lambda n: of_names(["/".join([f"{i:06}", *["d"] * 62, "f"]) for i in range(n)]),
    lambda n: of_names(["/".join([*["d"] * 63, f"{i:06}"]) for i in range(n)]),
    lambda n: of_names([f"{c}{i:06}" for i in range(n // 2) for c in "aA"]),
    lambda n: of_names([f"aux:{i}. " for i in range(n)]),
    lambda n: of_names([f"\u00e9\u0301{i:06}" for i in range(n)]),
]
HEADERS: list[Work] = [
    lambda n: of_header(b'form-data; name="f"; filename="' + b"%2F" * 40 * n + b'!"'),
    lambda n: of_header(b"form-data; name=\"f\"; filename*=UTF-8''" + b"%2F" * 40 * n + b"%"),
    lambda n: of_header(b'form-data; name="' + b"\\" * 40 * n),
    lambda n: of_header(b"form-data" + b"; a=" * 40 * n),
]
OUTPUTS = ("*a" * 100 + "b", "/".join(["**", "*a*"] * 16), "**/" * 31 + "b")
IGNORED = ("*a" * 120 + "b", "**/a/" * 60 + "*a*a*b", "**/" * 200 + "x", "*a*/" * 30 + "b")
PARTS = ("\x1b[31mx", "\x1b]8;;", "\x1b[1;1;1", "\x1bP", "\r", "\x1b[ !", "x\x00", "\x1b[1;1m")
WORK: dict[str, Work] = {
    **{f"names, {number}": work for number, work in enumerate(NAMES)},
    **{f"headers, {number}": work for number, work in enumerate(HEADERS)},
    **{f"outputs {one[:20]}": functools.partial(of_outputs, one) for one in OUTPUTS},
    **{f"ignored {one[:20]}": functools.partial(of_ignored, one) for one in IGNORED},
    **{f"a log of {one!r}": functools.partial(of_lines, one) for one in PARTS},
    **{
        f"a form of {name} in pieces of {cut}": functools.partial(of_form, shape, cut)
        for name, shape in FORMS.items()
        for cut in (1 << 20, 64, 1)
    },
    "blanks in a cell": of_cells,
    "letters that are not seen": of_odd_letters,
}


@each("what", WORK)
def test_twice_the_input_is_twice_the_work(what):
    few, many = (steps(functools.partial(WORK[what], n), lines=True) for n in (100, 200))
    assert many <= 2.2 * few + 200


def test_each_file_of_many_costs_its_name_only():
    """Not its folders again, which are the same for all."""
    patterns = [f"{'**/*/' * 15}**/{at}" for at in range(32)]
    folder = "/".join("a" * 30)

    def match(count: int) -> None:
        globs = Globs(patterns)
        assert {globs.matching(f"{folder}/f{at}") for at in range(count)} == {None}

    few, many = (steps(functools.partial(match, count)) for count in (50, 100))
    assert many - few < 50 * len(patterns) * 2
