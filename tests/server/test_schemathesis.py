"""Requests that Schemathesis makes from ``/openapi.json``, right and wrong ones: the server answers
every one of them as it says there, and none with 5xx."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from server.http import event_stream, logs, params
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

CONFIG = Path(__file__).parent.parent / "kit" / "schemathesis.toml"
TOKEN = "a-token-of-an-operator"


async def run(folder: Path, *arguments: str, tokens: bool) -> str:
    """What it found, as text; empty: nothing."""
    settings: dict[str, Any] = {"tokens": [TOKEN]} if tokens else {}
    async with driving(folder, FakeOrchestrator(), **settings) as caller:
        if tokens:
            caller.session.headers["Authorization"] = f"Bearer {TOKEN}"
        await caller.job(await caller.upload())
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
        command += [f"{caller.url}/openapi.json", "--url", caller.url, "--checks", "all"]
        command += ["--no-shrink", "--no-color", "--warnings", "off", *arguments]
        command += ["-H", f"Authorization: Bearer {TOKEN}"] if tokens else []
        program = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await program.communicate())[0].decode()
    return "" if program.returncode == 0 else said


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """No request waits long for something to happen."""
    monkeypatch.setattr(params, "MAX_WAIT_S", 0.01)
    monkeypatch.setattr(logs, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(event_stream, "KEEPALIVE_S", 0.01)


async def test_the_operations_that_its_settings_name_are_there(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        paths = json.loads((await caller.get("/openapi.json"))[2])["paths"]
    known = {operation["operationId"] for path in paths.values() for operation in path.values()}
    for chosen in tomllib.loads(CONFIG.read_text())["operations"]:
        assert set(chosen["include-operation-id"]) <= known


async def test_the_examples_of_the_description_work(tmp_path) -> None:
    assert not await run(tmp_path, "--phases", "examples", "--seed", "1", tokens=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tokens", [False, True], ids=["open", "with a token"])
async def test_thousands_of_requests_are_answered_as_described(tmp_path, tokens) -> None:
    said = await run(
        tmp_path, "--max-examples", "8", "--max-time", "150", "--continue-on-failure", tokens=tokens
    )
    assert not said, said[said.find("FAILURES") :]
