"""HTTP of the users of the soak: each request until there is an answer."""

from __future__ import annotations

import http.client
import threading
import time

from tests.kit.programs import call

PATIENCE_S = 180.0
_AGAIN = (429, 503, 507)
_never = threading.Event()


class Wrong(Exception):
    """What must be true is not."""


def pause(seconds: float) -> None:
    _never.wait(seconds)


def ask(
    url: str, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body. Asks again while nothing listens, or an answer breaks off or says so."""
    end = time.monotonic() + PATIENCE_S
    last: object = None
    while time.monotonic() < end:
        try:
            status, answer = call(url, method, path, body, headers)
        except AssertionError as wrong:
            raise Wrong(f"{method} {path}: the digest is not that of the body") from wrong
        except (OSError, http.client.HTTPException) as problem:
            last = problem
            pause(0.1)
            continue
        if status not in _AGAIN:
            return status, answer
        last = answer[:300]
        pause(0.3)
    raise Wrong(f"{method} {path}: no answer in {PATIENCE_S:.0f} s ({last!r})")
