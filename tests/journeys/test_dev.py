"""``ferryman dev`` starts with one word, stops cleanly, and leaves nothing, whatever kills it; and
its two programs, each alone, as on two machines.
"""

import asyncio
import os
import re
import select
import signal
import socket
import subprocess
import uuid
import zipfile
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from ferryman import Client, JobState, SyncClient
from ferryman.dev import default_data_dir, known_agent, reserved
from shared.http.sockets import listen
from tests.kit import command_line, dev_program
from tests.kit.dev_program import DevProgram, born, launch, marked, ready, traces
from tests.kit.programs import Program

FREE = ("--port", "0", "--agent-port", "0")
SLEEP = {"run.sh": b"sleep 600"}
TOKEN = "a-long-random-text-1"


def wait_until_gone(pids: dict[int, str]) -> None:
    """Through pidfds: no polling."""
    for pid, birth in pids.items():
        with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
            if born(pid) == birth:
                assert select.select([process], [], [], 60)[0], f"process {pid} did not end"


def run_a_job(system: DevProgram, token: str | None = None) -> dict[int, str]:
    """Every process of a system with a running job."""
    with SyncClient(system.url, user="ada", retry_for=0, token=token) as client:
        job = client.submit(SLEEP, service="example")
        next(event for event in client.events(job.id) if event.status is JobState.RUNNING)
    family = dev_program.descendants(system.process.pid)
    assert len(family) > 2
    return family


def test_what_it_prints_can_be_pasted(system, tmp_path):
    lines = system.said("/download/1")
    upload = next(line for line in lines if "/upload" in line)
    shell = {"cwd": tmp_path, "text": True, "capture_output": True, "check": True, "timeout": 60}
    answer = subprocess.run(["bash", "-c", upload], **shell).stdout
    match = re.search(r'"id": ?(\d+)', answer)
    assert match, answer
    fetch = lines[-1].replace("/download/1", f"/download/{match[1]}")
    subprocess.run(["bash", "-c", fetch], **shell)
    with zipfile.ZipFile(tmp_path / "result.zip") as archive:
        assert archive.read("hello.txt").decode() == f"hello from job {match[1]}\n"


def test_settings_come_from_a_file_and_it_has_one_thread(system):
    threads = list(Path(f"/proc/{system.process.pid}/task").iterdir())
    assert len(threads) == 1, "each thread's end would send the two programs one more SIGTERM"
    with SyncClient(system.url, user="ada") as client:
        services = {one.name: one for one in client.services()}
        assert services.keys() == {"dock", "example"}
        assert services["dock"].timeout_s == 300.0
        job = client.submit({"run.sh": b"true"}, service="dock")
        assert client.wait(job.id, timeout=60).agent == "mine"
        # After a job: slots are known from an agent's first answer on.
        assert {one.name: one.slots for one in client.agents()} == {"mine": 5, "far": None}


def test_when_it_or_one_of_the_two_dies_the_others_are_stopped(tmp_path):
    config = tmp_path / "ferryman.toml"
    config.write_text(f'[server]\ntokens = ["{TOKEN}"]\n[services.example]\n')
    flags = (*FREE, "--data-dir", str(tmp_path / "data"))
    system = ready(launch(tmp_path, *flags, "--config", str(config)))
    try:  # where the settings have a token the dashboard is open for who starts it
        lines = system.said("/upload")
        address = next(line for line in lines if "dashboard: " in line).split()[-1]
        assert address.startswith(f"{system.url}/login/once?code=")
        assert "Bearer $FERRYMAN_TOKEN" in lines[-1]
        assert "service=example" in lines[-1]
        with urlopen(address, timeout=10) as page:
            assert b"Log in" in page.read()
        family = run_a_job(system, TOKEN)
        os.kill(dev_program.pid_of(system, "server"), signal.SIGKILL)
        code = system.process.wait(60)
    finally:
        assert system.stop() == 137
    assert (code, "killed by signal 9" in system.log) == (137, True)
    assert [pid for pid, birth in family.items() if born(pid) == birth] == []
    assert traces(system) == []

    system = ready(launch(tmp_path, *flags))
    try:
        family = run_a_job(system)
    finally:
        assert system.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until_gone(family)
    assert (marked(system.mark), traces(system)) == ([], [])


@pytest.mark.slow  # it cannot tidy up when it dies; the next one on the same folder does
def test_when_the_agent_dies_the_server_is_stopped(tmp_path):
    system = ready(launch(tmp_path, *FREE, "--data-dir", str(tmp_path / "data")))
    os.kill(dev_program.pid_of(system, "client_agent"), signal.SIGKILL)
    assert (system.process.wait(60), system.stop()) == (137, 137)
    with dev_program.started(tmp_path):
        pass


@pytest.mark.parametrize("flag", ["--port", pytest.param("--agent-port", marks=pytest.mark.slow)])
def test_a_port_in_use_is_reported_and_nothing_stays_behind(tmp_path, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        system = launch(tmp_path, *FREE, flag, port, "--data-dir", str(tmp_path / "data"))
        code = system.process.wait(60)
    assert system.stop() == code == 69
    assert f":{port}" in system.log
    assert "another program listens there" in system.log
    assert "Traceback" not in system.log
    assert system.output == []
    assert marked(system.mark) == []


def test_agents_of_the_settings_that_it_cannot_start_are_refused_by_name(tmp_path):
    config = tmp_path / "ferryman.toml"
    assert known_agent(config, 9000) is None
    far, here, other = (
        f"[agents.{name}]\nurl = 'http://{where}'\n"
        for name, where in (("far", "node-3:9000"), ("here", "127.0.0.1:9000"), ("o", "localhost"))
    )
    config.write_text(far + here)
    assert known_agent(config, 9000) == known_agent(config, 0) == 9000
    for text, port in ((here, 9001), (here + other, 0), (far, 9000)):
        config.write_text(text)
        with pytest.raises(ValueError, match="one of them has to be the agent"):
            known_agent(config, port)
    said = command_line.run("dev", *FREE, "--config", config)
    assert (said.code, "agents far: one of them" in " ".join(said.err.split())) == (2, True)


def test_data_goes_where_the_users_data_go():
    assert default_data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/ferryman/dev")
    assert default_data_dir({"XDG_DATA_HOME": "relative"}) == default_data_dir({})
    assert default_data_dir({}) == Path.home() / ".local/share/ferryman/dev"


def test_a_reserved_port_is_given_to_the_agent_and_to_nobody_else():
    with reserved(0) as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        listen("127.0.0.1", port).close()
    with reserved(9000) as given:
        assert given == 9000


async def test_following_a_job_survives_a_kill_9_of_the_server(tmp_path):
    mark, config = uuid.uuid4().hex, tmp_path / "ferryman.toml"
    agent = Program("client_agent", tmp_path, mark, "--config", str(config), "--name", "far-away")
    server = Program("server", tmp_path, mark, "--config", str(config))
    config.write_text(
        '[agent]\ntokens = ["for-the-agent-only"]\nservices = ["dock"]\n[server]\n'
        f'tokens = ["{TOKEN}"]\n[services.dock]\n[agents.near]\n'
        f'url = "{agent.url}"\ntoken = "for-the-agent-only"\n'
    )
    with agent.running(), server.running():
        async with Client(server.url, user="ada", retry_for=30, token=TOKEN) as client:
            script = {"run.sh": b"sleep 2; echo kept > kept.txt"}
            job = await client.submit(script, service="dock")
            seen = []
            async for event in client.events(job.id):
                seen.append(event.status)
                if event.status is JobState.RUNNING:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
            assert (seen[0], seen[-1]) == (JobState.QUEUED, JobState.COMPLETED)
            assert seen.count(JobState.RUNNING) == 1
            ended = await client.status(job.id)
            assert (ended.attempt, ended.agent) == (1, "near")
            assert (await client.download(job.id, tmp_path)).checked
    assert "far-away" in agent.log
