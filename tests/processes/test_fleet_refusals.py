"""Agents that refuse a service's jobs do not keep them from agents that take them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ferryman.sync import SyncClient
from tests.kit.programs import Program, until


@contextmanager
def fleet(folder: Path, unable: str, able: str) -> Iterator[SyncClient]:
    """A server with two agents; of idle ones the first by name is asked first."""
    mark = uuid.uuid4().hex
    agents = {}
    for name, settings in (("a-unable", unable), ("b-able", able)):
        config = folder / f"{name}.toml"
        config.write_text(f"[agent]\nname = '{name}'\n{settings}")
        home = folder / name
        home.mkdir()
        agents[name] = Program("client_agent", home, mark, "--config", str(config))
    lines = ["[services.s]", "limits = { network = true }", "[services.plain]"]
    for name, agent in agents.items():
        lines += [f"[agents.{name}]", f"url = '{agent.url}'"]
    config = folder / "server.toml"
    config.write_text("\n".join(lines))
    server = Program("server", folder, mark, "--config", str(config))
    with ExitStack() as stack:
        for program in (*agents.values(), server):
            stack.enter_context(program.running())
        user = stack.enter_context(SyncClient(server.url, user="ann"))
        until(lambda: all(one.up for one in user.agents()), "they are not up")
        yield user


BUNDLE = {"run.sh": b"echo done\n"}


def test_a_job_goes_to_an_agent_that_gives_what_its_service_asks_for(tmp_path: Path) -> None:
    given = "[agent.sandboxing]\nnetwork = true\n"
    with fleet(tmp_path, "", given) as user:
        jobs = [user.wait(user.submit(BUNDLE, service="s").id, 60) for _ in range(2)]
        assert [(job.status, job.agent) for job in jobs] == [("Completed", "b-able")] * 2
        reply = [event.message for event in user.events(jobs[0].id)]
        assert any("agent a-unable does not take it now" in message for message in reply)
        # the second was not even offered to it, and other services' jobs are
        assert len(list(user.events(jobs[1].id))) < len(reply)
        plain = user.wait(user.submit(BUNDLE, service="plain").id, 60)
        assert (plain.status, plain.agent) == ("Completed", "a-unable")


def test_a_tree_that_is_missing_on_one_agent_is_found_on_another(tmp_path: Path) -> None:
    missing = "[agent.sandboxing]\nread_only = ['/does/not/exist:/tree']\n"
    with fleet(tmp_path, missing, "") as user:
        job = user.wait(user.submit(BUNDLE, service="plain").id, 60)
        assert (job.status, job.agent) == ("Completed", "b-able")


def test_what_no_agent_gives_fails_and_says_why(tmp_path: Path) -> None:
    with fleet(tmp_path, "", "") as user:
        job = user.wait(user.submit(BUNDLE, service="s").id, 60)
        assert (job.status, job.reason) == ("Failed", "not_offered")
        assert "asks for the host's network" in job.message
