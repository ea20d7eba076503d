"""One request on a connection of its own, whose body is checked against its digest."""

from __future__ import annotations

import base64
import hashlib
import http.client
from urllib.parse import urlsplit


def call(
    url: str, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body.

    Raises:
        AssertionError: the body is not that of the digest in the answer's head.
        OSError, http.client.HTTPException: there is no answer, or it broke off.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        digest = answer.headers.get("Repr-Digest")
        if digest is not None:
            found = base64.b64encode(hashlib.sha256(content).digest()).decode()
            assert digest == f"sha-256=:{found}:"
        return answer.status, content
    finally:
        connection.close()
