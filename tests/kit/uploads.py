"""Uploads as a test sends them: whole or in the middle, and what of them is stored."""

import io
import subprocess
import sys
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
    """What is stored in a server's folder, as a file or a row, and halves of it."""
    kinds = kinds or ("staging", "bundles", "results")
    files = {path for kind in kinds for path in (data / kind).rglob("*") if path.is_file()}
    return files.union(*(_rows(data, kind) for kind in kinds if kind != "staging"))


_NAMES = """
import sqlite3, sys
for name, in sqlite3.connect(sys.argv[1]).execute(
    f"SELECT name FROM contents EXCEPT SELECT {sys.argv[2]}"
):
    print(name)
"""


def _rows(data: Path, kind: str) -> set[Path]:
    """Those to which nothing refers count as of either kind. Another process reads them: in that of
    the server SQLite would keep the file open.
    """
    others = {"bundles": "result_file FROM attempts", "results": "file FROM bundles"}[kind]
    command = [sys.executable, "-I", "-S", "-c", _NAMES, str(data / "ferryman.sqlite"), others]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {data / kind / name for name in found.split()}
