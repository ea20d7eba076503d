"""Sessions of browsers: what is kept of them, and how long they are good."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from server.domain.errors import FerrymanError
from shared.clock import Micros

MOST: Final = 20
"""Of one principal; the oldest ones end when there are more."""
_LONGEST: Final = 60
_BROWSERS: Final = (
    ("Edge", re.compile(r"Edg(?:e|A|iOS)?/(\d+)")),
    ("Opera", re.compile(r"OPR/(\d+)")),
    ("Firefox", re.compile(r"(?:Firefox|FxiOS)/(\d+)")),
    ("Chrome", re.compile(r"(?:HeadlessChrome|Chrome|CriOS)/(\d+)")),
    ("Safari", re.compile(r"Version/(\d+)[^ ]* (?:Mobile/\w+ )?Safari")),
)
"""Some claim to be those that come after them here."""
_SYSTEMS: Final = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


class NoSuchSession(FerrymanError):
    code = "session_not_found"

    def __init__(self) -> None:
        super().__init__("you have no such session: it may have ended meanwhile")


class LoginUsed(FerrymanError):
    """A link that logs in was used before."""

    code = "login_link_used"

    def __init__(self) -> None:
        super().__init__(
            "this login link was used before, and is good once: ask for another one "
            "(ferryman dashboard), or log in with a token"
        )


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What is kept of a session.

    Attributes:
        id: no secret: lists show it.
        digest: SHA-256 of its text, in hexadecimal.
        principal: name of whoever has logged in.
        token_id: of the token that it belongs to; None: that is one of the settings.
        token_digest: SHA-256 of that one, in hexadecimal.
        browser: as :func:`browser_name` says it.
        version: the number of the change that made the row what it is, among all sessions.
    """

    id: str
    digest: str
    principal: str
    token_id: str | None
    token_digest: str | None
    created_at: Micros
    expires_at: Micros
    browser: str
    ended_at: Micros | None = None
    last_used_at: Micros | None = None
    last_used_from: str | None = None
    version: int = 0

    def live(self, now: Micros) -> bool:
        """Whether it has neither ended nor expired; its token may be worth nothing all the same."""
        return self.ended_at is None and now < self.expires_at


def digest_of(text: str) -> str:
    """What is kept of the text of a session, or of a token of the settings."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def browser_name(user_agent: str) -> str:
    """``Firefox 140, Linux``: enough for its owner to know it by."""
    user_agent = user_agent[:500]
    parts = []
    for name, pattern in _BROWSERS:
        if found := pattern.search(user_agent):
            parts.append(f"{name} {found[1][:5]}")
            break
    parts += [said for mark, said in _SYSTEMS if mark in user_agent][:1]
    if parts:
        return ", ".join(parts)
    plain = "".join(one if one.isprintable() else "?" for one in user_agent[:_LONGEST])
    return plain.strip() or "unknown browser"
