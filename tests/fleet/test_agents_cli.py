"""``ferryman agents`` and the SDK's methods behind it, against a real server."""

from __future__ import annotations

import html
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, Conflict, NotFound
from tests.kit import command_line
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.server_http import ServerClient


class Operator:
    """Runs the command line as an operator does."""

    def __init__(self, caller: ServerClient, folder: Path) -> None:
        self.caller, self._folder = caller, folder

    async def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        words = ("--url", self.caller.url, "agents", *words)
        return await command_line.ferryman(*words, cwd=self._folder)


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent("north", "abc", ends="Running")


@pytest.fixture
async def operator(tmp_path: Path, agent: FakeAgent) -> AsyncIterator[Operator]:
    async with serving(tmp_path, agent) as caller:
        await agent.until(lambda: agent.streams == 1)
        yield Operator(caller, tmp_path)


async def test_agents_are_listed_and_shown(operator: Operator, agent: FakeAgent) -> None:
    job_id = await operator.caller.upload()
    await operator.caller.job(job_id, until="Running")
    code, out, err = await operator("list")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "AGENT\tSTATE\tREADY\tJOBS\tRUNNING\tSLOTS\tLOAD\tADDRESS\tWHY",
        f"north\tactive\tyes\t1\t1\t4\t\t{agent.url}\t",
    ]
    code, out, _ = await operator("list", "--json", "--retired")
    assert (code, [one["id"] for one in json.loads(out)]) == (0, ["abc"])
    code, out, _ = await operator("show", "north")
    assert code == 0
    assert out.splitlines()[:-1] == [
        "agent north is active",
        "  gets new jobs",
        f"  Ferryman agent at {agent.url}, id abc",
        "  1 job, 1 running, 4 slots",
    ]
    code, out, _ = await operator("show", "abc", "--json")
    assert (code, json.loads(out)["name"]) == (0, "north")
    code, out, err = await operator("show", "nobody")
    assert (code, out) == (1, "")
    assert "this server knows no agent nobody" in err


async def test_an_agent_is_drained_resumed_and_retired(
    operator: Operator, agent: FakeAgent
) -> None:
    job_id = await operator.caller.upload()
    await operator.caller.job(job_id, until="Running")
    code, out, err = await operator("drain", "north", "-m", "new disk")
    assert (code, out, err) == (0, "", "agent north is draining; new disk; it has 1 job\n")
    code, out, _ = await operator("list")
    assert "\tdraining\tno\t1\t" in out
    code, _, err = await operator("retire", "north", "--yes")
    assert code == 1
    assert "agent north has 1 job: drain it and wait" in err
    code, _, err = await operator("lost", "north", "--yes")
    assert code == 1
    assert "agent north can be reached, so its jobs are not lost" in err
    await agent.end(agent.held(f"{job_id}.1"))
    await operator.caller.job(job_id)
    code, _, err = await operator("retire", "north", "--yes")
    assert (code, err) == (0, "agent north is retired; retired by an operator\n")
    assert await operator("resume", "north", "-q") == (0, "", "")
    code, out, _ = await operator("resume", "north", "--json")
    assert (code, json.loads(out)["state"]) == (0, "active")


@pytest.mark.parametrize("action", ["retire", "lost"])
async def test_what_cannot_be_undone_is_asked_first(operator: Operator, action: str) -> None:
    code, out, err = await operator(action, "north")
    assert (code, out) == (2, "")
    assert f"agents {action} asks first: give --yes" in err
    code, out, _ = await operator("show", "north", "--json")
    assert json.loads(out)["state"] == "active"


async def test_the_sdk_says_what_is_in_the_way(operator: Operator) -> None:
    async with Client(operator.caller.url) as client:
        drained = await client.change_agent("abc", "drain", "for repair")
        assert (drained.name, drained.state, drained.message) == ("north", "draining", "for repair")
        with pytest.raises(Conflict, match="can be reached") as caught:
            await client.change_agent("north", "lost")
        assert (caught.value.status, caught.value.code) == (409, "agent_reachable")
        with pytest.raises(NotFound):
            await client.change_agent("no/body?", "drain")


async def test_the_doctor_finds_a_real_server_and_its_agent_well(
    operator: Operator, tmp_path: Path
) -> None:
    words = ("doctor", "--url", operator.caller.url)
    code, out, err = await command_line.ferryman(*words, cwd=tmp_path)
    assert (code, err) == (0, ""), out
    lines = out.splitlines()
    assert "ok       token: the server asks for none" in lines
    assert "ok       agent north: it gets jobs" in lines
    assert not [line for line in lines if line.startswith("PROBLEM")]


FULL = "no new bundles are taken: too little space on the agent's disk"
BROKEN = "the sandbox cannot be used: bwrap: No such file or directory"
SOFT = {"enforcement": {"memory": "soft", "pids": "hard"}, "warning": ""}


@pytest.mark.parametrize(
    ("sick", "ready", "kind", "says"),
    [
        ({"says": {"ready": False, "message": FULL}}, "no", "agent_unfit", FULL),
        ({"well": False, "says": {"message": BROKEN}}, "no", "agent_unfit", BROKEN),
        ({"clock_ahead_s": 259_200.0}, "yes", "agent_clock", "ahead of the server's"),
        ({"clock_ahead_s": -3_600.0}, "yes", "agent_clock", "behind the server's"),
        ({"says": {"version": "9.9.0"}}, "yes", "agent_version", "it has version 9.9.0"),
        ({"says": {"sandbox": SOFT}}, "yes", "", "limits that a job can get around: memory"),
    ],
    ids=["disk", "sandbox", "ahead", "behind", "version", "soft"],
)
async def test_a_sick_agent_looks_sick_wherever_one_looks(
    tmp_path: Path, sick: dict[str, Any], ready: str, kind: str, says: str
) -> None:
    """Its results are fetched all the same; READY is whether it gets new jobs."""
    agent = FakeAgent("north", "abc", **sick)
    async with serving(tmp_path, agent) as caller:
        await agent.until(lambda: agent.streams == 1)
        operator = Operator(caller, tmp_path)
        _, listed, _ = await operator("list")
        row = listed.splitlines()[1].split("\t")
        assert row[2] == ready
        assert says in row[8]
        _, shown, _ = await operator("show", "north")
        assert says in shown
        async with caller.session.get(f"{caller.url}/api/v1/status") as answer:
            status = await answer.json()
        named = [(one["kind"], one["about"]) for one in status["troubles"]]
        assert ((kind, "north") in named) == bool(kind), named
        assert status["status"] == ("attention" if kind else "ok")
        words = ("doctor", "--url", caller.url)
        code, out, _ = await command_line.ferryman(*words, cwd=tmp_path)
        assert (code != 0) == (ready == "no"), out
        (line,) = [
            one for one in out.splitlines() if says in one and one[9:].startswith("agent north: ")
        ]
        assert line.startswith("PROBLEM" if ready == "no" else "warning")
        async with caller.session.get(f"{caller.url}/agents/north") as answer:
            page = html.unescape(await answer.text())
        assert says.lower() in page.lower()
        async with caller.session.get(f"{caller.url}/health") as answer:
            assert (await answer.json())["agents"] == {"north": "up" if ready == "yes" else "down"}
