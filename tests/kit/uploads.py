"""Uploads as a test sends them: whole or in the middle, and what of them is stored."""

import io
from pathlib import Path
from typing import Any

from tests.kit.raw_archives import FORM, text_part
from tests.kit.server_http import ServerClient

FIELDS = [text_part("user_id", "7"), text_part("service", "my_service")]


async def post(
    caller: ServerClient, body: bytes, path: str = "/upload", **headers: str
) -> tuple[int, dict[str, str], dict[str, Any]]:
    asked = {"Content-Type": FORM, **headers}
    async with caller.session.post(
        f"{caller.url}{path}", data=io.BytesIO(body), headers=asked
    ) as answer:
        return answer.status, dict(answer.headers), await answer.json()


def left(data: Path, *kinds: str) -> set[Path]:
    """What is stored in a server's folder, and halves of it."""
    places = [data / kind for kind in kinds or ("staging", "bundles", "results")]
    return {path for place in places for path in place.rglob("*") if path.is_file()}
