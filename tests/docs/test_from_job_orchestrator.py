"""The steps of docs/from-job-orchestrator.md, walked through with jobs in flight at each."""

import io
import re
import zipfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from server.settings import load
from tests.kit.agent_http import AgentClient, calling
from tests.kit.dev_program import ROOT
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.server_http import RUN, ServerClient, hosted
from tests.kit.waiting import eventually, until

PAGE = (ROOT / "docs/from-job-orchestrator.md").read_text()
STEPS = re.findall(r"^## Step (\d)", PAGE, re.MULTILINE)


def variables(client: str) -> dict[str, str]:
    """The compose file's, which both servers are given."""
    routes = {"UPLOAD": "submit", "DOWNLOAD": "retrieve", "TERMINATE": "kill"}
    found = {f"{name}_URL": f"{client}/{route}" for name, route in routes.items() if client}
    found |= {"RUNS_PER_USER": "8", "MAX_RUNS": "8"}
    return {f"SERVICE_MY_SERVICE_{name}": text for name, text in found.items()}


class FormerServer:
    """What a job-orchestrator server does with a client at these addresses."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self.url = http, url

    async def submit(self) -> int:
        form = aiohttp.FormData()
        form.add_field("data/in.pdb", b"ATOM", filename="in.pdb")
        form.add_field("run.sh", RUN, filename="run.sh")
        async with self._http.post(f"{self.url}/submit", data=form) as answer:
            payload = await answer.json()
        assert answer.status == 200
        assert payload["status"] == "Prepared"
        return int(payload["id"])

    async def retrieve(self, payload: int) -> str | list[str]:
        """The payload's state, or the names in its result."""
        async with self._http.get(f"{self.url}/retrieve/{payload}") as answer:
            if answer.content_type == "application/zip":
                return zipfile.ZipFile(io.BytesIO(await answer.read())).namelist()
            return str((await answer.json())["status"])

    async def result(self, payload: int) -> list[str]:
        going_on = ("Prepared", "Running")
        found = await eventually(lambda: self.retrieve(payload), lambda one: one not in going_on)
        assert isinstance(found, list), found
        return found


@asynccontextmanager
async def server(folder: Path, environ: dict[str, str], file: str) -> AsyncIterator[ServerClient]:
    path = folder / "server.toml"
    path.write_text(file)
    flags: dict[str, Any] = {"server": {"data_dir": folder / "data", "getter_interval": 0.02}}
    async with AsyncExitStack() as stack:
        yield await hosted(load.read(path, flags, environ), stack)


async def sent_to(caller: ServerClient, agent: str) -> int:
    """Upload until one of the jobs is at the agent."""
    while True:
        job_id = await caller.upload()
        job = await caller.job(job_id, until="Running")
        if job["agent"] == agent:
            return job_id


async def completed(caller: ServerClient, *jobs: int) -> None:
    for job_id in jobs:
        assert (await caller.job(job_id))["status"] == "Completed"
        status, kind, _ = await caller.get(f"/download/{job_id}")
        assert (status, kind) == (200, "application/zip")


def finish(process: FakeProcess) -> None:
    process.write("out.txt", b"done")
    process.finish()


async def running(agent: AgentClient) -> FakeProcess:
    """The only attempt."""
    await until(lambda: bool(agent.sandbox.live))
    (process,) = agent.sandbox.live.values()
    return process


@pytest.mark.slow  # the quick ones: tests/fleet/test_job_orchestrator_client.py
async def test_the_steps_of_the_page(tmp_path: Path) -> None:
    assert STEPS == ["1", "2", "3", "4", "5"]
    client = FakeOrchestrator(then="Running")
    async with AsyncExitStack() as stack:
        former_client = await stack.enter_async_context(client.listening())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        former = FormerServer(http, former_client)

        # 1: a server of ours beside the former one; both use the client, with the same variables
        in_flight = await former.submit()
        async with server(tmp_path, variables(former_client), "") as ours:
            first = await ours.upload()
            await ours.job(first, until="Running")  # so that it is the client's payload 2
            second = await ours.upload()
            await ours.job(second, until="Running")
            assert {held.status for held in client.payloads.values()} == {"Running"}
            client.payloads[in_flight].status = "Completed"
            assert "output.txt" in await former.result(in_flight)
            client.payloads[2].status = "Completed"
            await completed(ours, first)

        # 2: an agent of ours is beside the client, first for the former server alone
        agent = await stack.enter_async_context(calling(tmp_path, services=["my_service"]))
        url = str(agent.http._base_url).rstrip("/")
        former.url = url
        plain = await former.submit()
        process = await running(agent)
        assert await former.retrieve(plain) == "Running"

        # 3: our server is given the agent, too; the job at the client goes on over its restart
        table = f'[agents.node]\nurl = "{url}"\n'
        async with server(tmp_path, variables(former_client), table) as ours:
            third = await sent_to(ours, "node")
            finish(process)
            assert "out.txt" in await former.result(plain)
            await completed(ours, first)
            client.payloads[3].status = "Completed"
            await completed(ours, second)

            # 4: the client gets no new jobs, what it has ends
            url, drain = f"{ours.url}/api/v1/agents/my_service", {"action": "drain"}
            async with ours.session.post(url, json=drain) as answer:
                assert answer.status == 200
            fourth = await ours.upload()
            assert (await ours.job(fourth, until="Running"))["agent"] == "node"
            for held in client.payloads.values():
                held.status = "Completed"
            attempt = (await ours.job(third, until="Running"))["attempt"]
            finish(await agent.sandbox.process(f"{third}.{attempt}"))
            await completed(ours, third)

        # 5: without the client and its addresses; what runs at the agent goes on
        async with server(tmp_path, variables(""), table + "[services.my_service]\n") as ours:
            assert (await ours.job(fourth, until="Running"))["status"] == "Running"
            killed = {"id": fourth, "status": "Killed", "message": "job terminated"}
            async with ours.session.post(f"{ours.url}/terminate/{fourth}") as answer:
                assert (answer.status, await answer.json()) == (200, killed)
            await completed(ours, first, second, third)

            # the way back: the agent still takes what a job-orchestrator server sends
            back = await former.submit()
            finish(await running(agent))
            assert "out.txt" in await former.result(back)
        assert agent.sandbox.violations == []
