"""Each sentence of docs/troubleshooting.md that says why a job waits, provoked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.stages.send import Send
from tests.docs.symptoms import said
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.in_process_system import InProcessSystem, together
from tests.support.server_http import ServerClient, driving


def sentence(job: dict[str, Any]) -> str:
    queue = job["queue"]
    return f"{queue['code']}: {queue['reason']}"


async def why(caller: ServerClient, job_id: int, *, until: str) -> str:
    """The sentence, once its code is the one."""
    while True:
        async with caller.session.get(f"{caller.url}/api/v1/jobs/{job_id}") as answer:
            job = await answer.json()
        if job["queue"] and job["queue"]["code"] == until:
            return sentence(job)


async def test_quotas_and_times(tmp_path: Path) -> None:
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:  # 2 of each user, 3 of all
        first, _, third = [await caller.upload() for _ in range(3)]
        said("wait-user-quota", await why(caller, third, until="user_quota"))
        dated = await caller.upload(not_before="in 2h")
        said("wait-not-before", await why(caller, dated, until="not_before"))
        after = await caller.upload(after=str(first))
        said("wait-dependency", await why(caller, after, until="dependency"))
        path = f"{caller.url}/api/v1/services/my_service/pause"
        async with caller.session.post(path) as answer:
            assert answer.status == 200
        said("wait-paused", await why(caller, third, until="paused"))


async def test_what_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        first = await caller.upload()
        await caller.job(first, until="Running")

        async def nothing(self: Send) -> int:
            return 0

        monkeypatch.setattr(Send, "run_once", nothing)  # so that the queue stays as it is
        said("wait-next", await why(caller, await caller.upload(), until="next"))
        said("wait-earlier-jobs", await why(caller, await caller.upload(), until="earlier_jobs"))


async def test_the_quota_of_a_service(tmp_path: Path) -> None:
    one = "[services.example]\nruns_per_user = 2\nmax_runs = 1\n"
    async with together(tmp_path, one) as system:
        await _upload(system)
        waiting = await _upload(system)
        said("wait-service-quota", await _why(system, waiting, "service_quota"))


async def test_no_agent(tmp_path: Path) -> None:
    more = "[services.lonely]\n"
    async with driving(tmp_path, FakeOrchestrator(), gone=True, extra=more) as caller:
        job_id = await caller.upload()
        said("wait-agent-away", await why(caller, job_id, until="no_agent"))
        lonely = await caller.upload(service="lonely")
        said("wait-nobody-offers", await why(caller, lonely, until="no_agent"))
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        said("wait-no-service", await why(caller, lonely, until="no_service"))


async def test_agents_that_are_full_and_children(tmp_path: Path) -> None:
    async with together(tmp_path) as system:
        array = await _upload(system, array="0-2", max_parallel="1")
        said("wait-children", await _why(system, array, "children"))
        said("wait-max-parallel", await _why(system, array + 2, "max_parallel"))
        await _upload(system)
        said("wait-agents-busy", await _why(system, await _upload(system), "agents_busy"))


async def _upload(system: InProcessSystem, **fields: str) -> int:
    parts = {"user_id": "ann", "service": "example", **fields}
    body = "".join(
        f'------fuzzed\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts.items()
    )
    body += '------fuzzed\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n'
    status, reply = await system.upload(f"{body}true\r\n------fuzzed--\r\n".encode())
    assert status == 201, reply
    return int(reply["id"])


async def _why(system: InProcessSystem, job_id: int, until: str) -> str:
    while True:
        async with system._http.get(f"{system.url}/api/v1/jobs/{job_id}") as answer:
            job = await answer.json()
        if job.get("queue") and job["queue"]["code"] == until:
            return sentence(job)
