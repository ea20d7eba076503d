"""``ferryman ticket`` and ``link``, and the SDK's methods behind them, against a real server."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

from ferryman import BadArgument, Client, NotAllowed, NotFound, Refused
from tests.kit.command_line import ferryman
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

OPERATOR = "the-operator's-own-token"


async def uploaded(caller: ServerClient, url: str) -> int:
    """The job that a browser made by a ticket."""
    form = aiohttp.FormData()
    form.add_field("file", RUN, filename="run.sh")
    async with caller.session.post(url, data=form) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


async def test_tickets_and_links_from_the_command_line(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), tokens=[OPERATOR]) as caller:

        async def run(*words: str) -> tuple[int, str, str]:
            return await ferryman(*words, FERRYMAN_URL=caller.url, FERRYMAN_TOKEN=OPERATOR)

        options = ("--service", "my_service", "--field", "tags=web", "--max-bytes", "1MB")
        code, out, err = await run("ticket", "--user", "ann", *options, "--expires-in", "1h")
        assert code == 0, err
        assert err.startswith("it is good for one upload, until ")
        job_id = await uploaded(caller, out.strip())
        job = await caller.server.context.jobs.get(job_id)
        assert (job.user_id, job.tags) == ("ann", ("web",))

        code, out, err = await run("link", str(job_id))
        assert code == 0
        assert err.startswith("it shows the job and all that it left until ")
        async with caller.session.get(out.strip()) as answer:
            assert (await answer.json())["id"] == job_id
        code, out, _ = await run("link", str(job_id), "a/b c.txt", "--json")
        assert code == 0
        assert "/files/a/b%20c.txt?link=" in json.loads(out)["url"]
        _, out, err = await run("link", str(job_id), "--result", "-q")
        assert f"/jobs/{job_id}/result?link=" in out
        assert err == ""

        for words, says in (
            (("ticket", "--user", "ann", "--field", "tags"), "write NAME=TEXT"),
            (("ticket", "--user", "ann", "--service", "none"), "this server has: my_service"),
            (("link", str(job_id), "a", "--result"), "give one of them"),
            (("link", "99"), "99"),
        ):
            code, out, err = await run(*words)
            assert (code != 0, out) == (True, ""), words
            assert says in err


async def test_tickets_and_links_by_the_sdk(tmp_path: Path) -> None:
    async with (
        driving(tmp_path, FakeOrchestrator(), tokens=[OPERATOR]) as caller,
        Client(caller.url, token=OPERATOR) as client,
    ):
        token = (await client.create_token("web", "portal", users=["lab-*"])).token
        async with Client(caller.url, token=token) as portal:
            ticket = await portal.create_ticket("lab-1", service="my_service", max_bytes=1_000)
            job_id = await uploaded(caller, ticket.upload_url)
            link = await portal.create_link(job_id, expires_in="2h")
            assert (await portal.status(job_id)).user_id == "lab-1"
            async with caller.session.get(link.url) as answer:
                assert answer.status == 200
            with pytest.raises(NotAllowed, match=r"lab-\*"):
                await portal.create_ticket("ann")
            with pytest.raises(Refused, match="return_to"):
                await portal.create_ticket("lab-1", return_to="https://evil.example")
            with pytest.raises(NotFound):
                await portal.create_link(99)
        async with Client(caller.url) as nobody:
            with pytest.raises(BadArgument, match="whose job"):
                await nobody.create_ticket()
