"""Agents that refuse a service's jobs do not keep them from agents that take them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ferryman import JobDoc, SyncClient
from tests.kit.programs import Program, until

UNABLE = """
[agent.sandboxing.services.tree]
read_only = ['/does/not/exist:/tree']
"""
ABLE = """
[agent.sandboxing.services.networked]
network = true
"""
SERVER = """
[services.plain]
[services.tree]
[services.networked]
limits = { network = true }
[services.nobodys]
limits = { network = true }
"""


@contextmanager
def fleet(folder: Path) -> Iterator[SyncClient]:
    """A server with two agents; of idle ones the first by name is asked first."""
    mark, table, config = uuid.uuid4().hex, SERVER, folder / "server.toml"
    with ExitStack() as stack:
        for name, settings in (("a-unable", UNABLE), ("b-able", ABLE)):
            home = folder / name
            home.mkdir()
            (home / "agent.toml").write_text(f"[agent]\nname = '{name}'\n{settings}")
            flags = ("--config", str(home / "agent.toml"))
            agent = stack.enter_context(Program("client_agent", home, mark, *flags).running())
            table += f"[agents.{name}]\nurl = '{agent.url}'\n"
        config.write_text(table)
        server = Program("server", folder, mark, "--config", str(config))
        stack.enter_context(server.running())
        user = stack.enter_context(SyncClient(server.url, user="ann"))
        until(lambda: all(one.up for one in user.agents()), "they are not up")
        yield user


def test_a_job_goes_to_an_agent_that_gives_what_its_service_asks_for(tmp_path: Path) -> None:
    with fleet(tmp_path) as user:

        def ended(service: str) -> JobDoc:
            return user.wait(user.submit({"run.sh": b"echo done\n"}, service=service).id, 60)

        jobs = [ended("networked") for _ in range(2)]
        assert [(job.status, job.agent) for job in jobs] == [("Completed", "b-able")] * 2
        reply = [event.message for event in user.events(jobs[0].id)]
        assert any("agent a-unable does not take it now" in message for message in reply)
        # the second was not even offered to it, and other services' jobs are
        assert len(list(user.events(jobs[1].id))) < len(reply)
        # a folder of the host that one agent has not is not needed on another
        for service, agent in (("plain", "a-unable"), ("tree", "b-able")):
            job = ended(service)
            assert (job.status, job.agent) == ("Completed", agent), service
        job = ended("nobodys")
        assert (job.status, job.reason) == ("Failed", "not_offered")
        assert "asks for the host's network" in job.message
