"""The headers of a form and of its parts, read as their senders mean them.

python-multipart's ``parse_options_header`` cuts names at backslashes and ignores ``filename*``, and
a wrong name is worse than a refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BARE: Final = re.compile(r"[^\s;\"]+")
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,199}[0-9A-Za-z'()+_,./:=?-]")
_EXTENDED: Final = re.compile(r"(?i:utf-8)'[^']*'((?:[^%\s]|%[0-9A-Fa-f]{2})*)")
_QUOTED_BY_BROWSERS: Final = {"%22": '"', "%0D": "\r", "%0A": "\n"}
_QUOTED_WHOLE: Final = re.compile(r"(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})*")


class BadHeader(ValueError):
    """A header that cannot be read.

    Attributes:
        code: short, snake_case.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True, slots=True)
class Disposition:
    """What a part's ``Content-Disposition`` says."""

    name: str
    filename: str | None
    """As its sender knows the file; ``""``: a file input left alone; None: a text field."""


def boundary_of(content_type: str) -> bytes:
    """The boundary of a ``multipart/form-data`` content type.

    Raises:
        BadHeader: ``not_multipart``, ``bad_boundary`` or ``bad_header``.
    """
    kind, parameters = _parse(content_type)
    if kind != "multipart/form-data":
        raise BadHeader("not_multipart", "the request must be a multipart/form-data form")
    boundary = parameters.get("boundary", "")
    if not boundary:
        raise BadHeader("bad_boundary", "the Content-Type header has no boundary")
    if not _BOUNDARY.fullmatch(boundary):
        raise BadHeader("bad_boundary", "the boundary in the Content-Type header is not valid")
    return boundary.encode("ascii")


def disposition(header: bytes, *, quoted_whole: bool = False) -> Disposition:
    """Read the ``Content-Disposition`` of a part.

    Senders differ. Browsers and newer curls send UTF-8 and escape only ``"``, CR and LF, as %22,
    %0D and %0A, but not the percent sign: ``a%22b`` is taken for ``a"b``, and may have been itself.
    Older curls put a backslash before ``"`` and backslash; others send RFC 5987's ``filename*``,
    which is preferred. Any other percent sign is one.

    Args:
        quoted_whole: the sender is aiohttp, which quotes file names as a whole: every folder would
            become ``folder%2Ffile``.

    Raises:
        BadHeader: ``bad_utf8`` or ``bad_header``.
    """
    try:
        text = header.decode()
    except UnicodeDecodeError:
        raise BadHeader("bad_utf8", "its Content-Disposition header is not valid UTF-8") from None
    kind, parameters = _parse(text)
    if kind != "form-data":
        raise BadHeader("bad_header", "its Content-Disposition is not form-data")
    name = _value(parameters, "name")
    if name is None:
        raise BadHeader("bad_header", "it has no name")
    return Disposition(name, _value(parameters, "filename", quoted_whole=quoted_whole))


def quotes_whole_names(user_agent: str) -> bool:
    """Whether a sender is aiohttp, as it calls itself (``Python/3.11 aiohttp/3.9.1``)."""
    return user_agent.startswith("Python/") and " aiohttp/" in user_agent


def _value(parameters: dict[str, str], key: str, *, quoted_whole: bool = False) -> str | None:
    extended = parameters.get(key + "*")
    if extended is not None:
        match = _EXTENDED.fullmatch(extended)
        if match is None:
            raise BadHeader("bad_header", f"its {key}* is not of the form UTF-8''…")
        return _unquote(match[1], key + "*")
    plain = parameters.get(key)
    if plain is None:
        return None
    if quoted_whole and _QUOTED_WHOLE.fullmatch(plain):
        return _unquote(plain, key)
    for escaped, character in _QUOTED_BY_BROWSERS.items():
        plain = plain.replace(escaped, character)
    return plain


def _unquote(text: str, key: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BadHeader("bad_utf8", f"its {key} is not valid UTF-8") from None


def _parse(text: str) -> tuple[str, dict[str, str]]:
    """Split ``kind; key=value; key="value"``; kind and keys in lower case."""
    kind, *_ = text.split(";", 1)
    at = len(kind)
    parameters: dict[str, str] = {}
    while at < len(text):
        at = _skip(text, at + 1)  # the semicolon
        if at == len(text):
            break
        token = _TOKEN.match(text, at)
        if token is None:
            raise BadHeader("bad_header", "a header is malformed: a parameter has no name")
        key = token[0].lower()
        at = _skip(text, token.end())
        if not text.startswith("=", at):
            raise BadHeader("bad_header", f"a header is malformed: its {key} has no value")
        value, at = _parameter(text, _skip(text, at + 1), key)
        # Programs choose differently between two values, so a check could see another than the
        # program behind it.
        if key in parameters or re.match(r"(file)?name\*.", key):
            raise BadHeader("bad_header", f"a header has more than one {key}")
        parameters[key] = value
        at = _skip(text, at)
        if at < len(text) and text[at] != ";":
            raise BadHeader("bad_header", f"a header is malformed behind its {key}")
    return kind.strip(" \t").lower(), parameters


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _parameter(text: str, at: int, key: str) -> tuple[str, int]:
    if not text.startswith('"', at):
        bare = _BARE.match(text, at)
        return ("", at) if bare is None else (bare[0], bare.end())
    value: list[str] = []
    at += 1
    while at < len(text):
        c = text[at]
        if c == '"':
            return "".join(value), at + 1
        # A backslash before anything else is a backslash: browsers do not escape them.
        if c == "\\" and text[at + 1 : at + 2] in {'"', "\\"}:
            at += 1
            c = text[at]
        value.append(c)
        at += 1
    raise BadHeader("bad_header", f"a header is malformed: its {key} has no closing quote")
