"""The same as a page of a job shows and does, from a script."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.job_pages import (
    PRINCIPALS,
    S,
    World,
    serving,
)
from tests.kit.server_http import driving


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


# -- from a script


def ways_of(page: str) -> dict[str, list[str]]:
    """The texts to copy of each way."""
    found = {}
    for part in page[page.index('id="scripts"') :].split("<section>")[1:]:
        name = re.findall(r"<h2>(.+?)</h2>", part)[0]
        found[name] = [unescape(one) for one in re.findall(r"<pre[^>]*>(.*?)</pre>", part, re.S)]
    return found


async def test_what_is_shown_to_copy_works_as_it_stands(tmp_path):
    """By curl, by the command line and in Python, with a token in the variable."""
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        world = World(caller)
        _, _, text = await world.upload()
        job_id = json.loads(text)["id"]
        ways = ways_of(await world.page(f"/jobs/{job_id}"))
        programs = Path(sys.executable).parent
        environ = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "FERRYMAN_TOKEN": "the-token-of-ann",
        }

        async def run(*words: str) -> tuple[int, str]:
            process = await asyncio.create_subprocess_exec(
                *words, env=environ, cwd=tmp_path, stdout=-1, stderr=-2
            )
            output, _ = await process.communicate()
            return process.returncode or 0, output.decode(errors="replace")

        status, wait, _, download, cancel = ways["curl"]
        found = json.loads((await run("sh", "-c", f"{wait} --silent"))[1])
        assert (found["id"], found["status"]) == (job_id, "Completed")
        assert json.loads((await run("sh", "-c", f"{status} --silent"))[1])["id"] == job_id
        code, output = await run("sh", "-c", download)
        assert (code, (tmp_path / f"job-{job_id}.zip").read_bytes()[:2]) == (0, b"PK"), output
        assert '"Completed"' in (await run("sh", "-c", cancel))[1]  # it had ended
        assert "the-token" not in " ".join(ways["curl"])
        for command in ways["Command line"][:2] + ways["Command line"][3:4]:
            code, output = await run("sh", "-c", command)
            assert code == 0, output
        code, output = await run("sh", "-c", ways["Command line"][4])
        assert "ended" in output
        code, output = await run(sys.executable, "-c", ways["Python"][0])
        # A job-orchestrator client has no logs of its own to follow.
        assert code == 0 or "log" in output, output


async def test_what_a_failed_job_left_is_what_the_commands_fetch(world):
    job = await world.ended(await world.running(await world.new()), S.FAILED)
    ways = ways_of(await world.page(f"/jobs/{job.id}"))
    assert ways["curl"][3].endswith(f"/download_partial/{job.id}")
    assert f"download {job.id} --partial" in ways["Command line"][3]


async def test_what_is_shown_to_copy_is_for_this_servers_own_address(tmp_path):
    settings = {"public_url": "https://jobs.example.org/queue"}
    async with serving(tmp_path, **settings) as world:
        job = await world.new()
        ways = ways_of(await world.page(f"/jobs/{job.id}"))
    base = "https://jobs.example.org/queue"
    assert all(base in text for texts in ways.values() for text in texts)
    assert f"{base}/api/v1/jobs/{job.id}" in ways["curl"][0]
    assert ways["Command line"][0] == f"ferryman status {job.id} --url {base}"
