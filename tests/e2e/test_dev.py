"""``ferryman dev``: starts with one word, stops cleanly, and leaves nothing, whatever kills it."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import zipfile
from pathlib import Path
from urllib.request import urlopen

import pytest

from ferryman import JobState, SyncClient
from ferryman.dev import default_data_dir, known_agent, reserved
from shared.http.sockets import listen
from tests.kit.dev_program import (
    born,
    descendants,
    launch,
    marked,
    ready,
    started,
    traces,
)

FREE = ("--port", "0", "--agent-port", "0")
OFTEN = pytest.mark.slow
"""For what another test here asks, too: each start takes two seconds of a processor."""


def pid_of(system, module: str) -> int:
    for pid in descendants(system.process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if module.encode() in words:
            return pid
    raise AssertionError(f"no process runs {module}")


def gone(pids: dict[int, str]) -> bool:
    return all(born(pid) != birth for pid, birth in pids.items())


def wait_until_gone(pids: dict[int, str]) -> None:
    """Through pidfds: no polling."""
    for pid, birth in pids.items():
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if born(pid) == birth:
                assert select.select([fd], [], [], 60)[0], f"process {pid} did not end"
        finally:
            os.close(fd)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=OFTEN)])
def test_it_stops_cleanly_when_asked(tmp_path, number):
    system = ready(launch(tmp_path, *FREE, "--data-dir", str(tmp_path / "data")))
    family = descendants(system.process.pid)
    assert len(family) >= 2
    threads = list(Path(f"/proc/{system.process.pid}/task").iterdir())
    assert len(threads) == 1, "each thread's end would send the two programs one more SIGTERM"
    assert system.stop(number) == 0, system.log
    assert gone(family)
    assert marked(system.mark) == []
    assert traces(system) == []


def test_what_it_prints_can_be_pasted(tmp_path):
    with started(tmp_path) as system:
        assert system.process.stdout is not None
        lines = (line.strip() for line in system.process.stdout)
        upload = next(line for line in lines if "/upload" in line)
        fetch = next(line for line in lines if "/download/" in line)
        shell = {"cwd": tmp_path, "text": True, "capture_output": True, "check": True}
        answer = subprocess.run(["bash", "-c", upload], timeout=60, **shell).stdout
        assert '"id":1' in answer.replace(" ", "")
        subprocess.run(["bash", "-c", fetch], timeout=60, **shell)
    with zipfile.ZipFile(tmp_path / "result.zip") as archive:
        assert archive.read("hello.txt") == b"hello from job 1\n"


@pytest.mark.slow  # the quick ones: tests/process/test_server_process.py
def test_jobs_outlive_a_restart(tmp_path):
    with started(tmp_path) as system, SyncClient(system.url, user="ada") as client:
        job = client.submit({"run.sh": b"echo kept > kept.txt"}, service="example")
        assert client.wait(job.id, timeout=60).status is JobState.COMPLETED
    with started(tmp_path) as system, SyncClient(system.url, user="ada") as client:
        assert client.status(job.id).status is JobState.COMPLETED
        assert client.download(job.id, tmp_path / "r.zip").size > 0
        again = client.submit({"run.sh": b"true"}, service="example")
        assert again.id > job.id
        assert client.wait(again.id, timeout=60).status is JobState.COMPLETED


def test_a_kill_9_leaves_no_process_even_while_a_job_runs(tmp_path):
    system = ready(launch(tmp_path, *FREE, "--data-dir", str(tmp_path / "data")))
    with SyncClient(system.url, user="ada", retry_for=0) as client:
        job = client.submit({"run.sh": b"sleep 600"}, service="example")
        for event in client.events(job.id):
            if event.status is JobState.RUNNING:
                break
    family = descendants(system.process.pid)
    assert len(family) > 2
    assert system.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until_gone(family)
    assert marked(system.mark) == []
    assert traces(system) == []


@pytest.mark.parametrize(
    ("dies", "other"),
    [("server", "client_agent"), pytest.param("client_agent", "server", marks=OFTEN)],
)
def test_when_one_of_the_two_dies_the_other_is_stopped_and_it_is_said(tmp_path, dies, other):
    system = ready(launch(tmp_path, *FREE, "--data-dir", str(tmp_path / "data")))
    family = descendants(system.process.pid)
    os.kill(pid_of(system, dies), signal.SIGKILL)
    code = system.process.wait(60)
    assert system.stop() == code == 137
    assert "killed by signal 9" in system.log
    assert gone(family)
    if dies == "client_agent":  # it could not tidy up; the next one on the same folder does
        with started(tmp_path):
            pass


@pytest.mark.parametrize("flag", ["--port", pytest.param("--agent-port", marks=OFTEN)])
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


@pytest.mark.slow  # the quick one: tests/formats/test_files.py
def test_a_second_one_on_the_same_folder_is_refused_and_the_first_goes_on(tmp_path):
    with started(tmp_path) as first:
        flags = ("--data-dir", str(tmp_path / "data"))
        second = launch(tmp_path / "second", *FREE, *flags)
        assert second.process.wait(60) in {73, 75}
        second.stop()
        assert "in use" in second.log
        with SyncClient(first.url, user="ada") as client:
            assert client.health().status == "ok"


def test_settings_come_from_a_file(tmp_path):
    config = tmp_path / "ferryman.toml"
    settings = '[services.dock]\ntimeout = "5m"\n[services.fold]\n[agent]\nslots = 1\n'
    agents = "[agents.mine]\nurl = 'http://localhost:{}'\nservices = ['dock']\n[agents.far]\n"
    for module in ("server", "client_agent", "shared"):  # a user's own, where it is started
        (tmp_path / f"{module}.py").write_text("raise SystemExit('not this one')\n")
    with reserved(0) as port:
        config.write_text(f"{settings}{agents.format(port)}url = 'http://[::1]:9'\n")
        with started(tmp_path, "--config", str(config)) as system, SyncClient(system.url) as client:
            services = {one.name: one for one in client.services()}
            assert services.keys() == {"dock", "fold"}
            assert services["dock"].timeout_s == 300.0
            job = client.submit({"run.sh": b"true"}, service="dock", user="ada")
            assert client.wait(job.id, timeout=60).agent == "mine"
            # After a job: slots are known from an agent's first answer on.
            assert {one.name: one.slots for one in client.agents()} == {"mine": 1, "far": None}


def test_where_the_settings_have_a_token_the_dashboard_is_open_for_who_starts_it(tmp_path):
    config = tmp_path / "ferryman.toml"
    config.write_text('[server]\ntokens = ["a-long-random-text-1"]\n[services.dock]\n')
    with started(tmp_path, "--config", str(config)) as system:
        assert system.process.stdout is not None
        lines = [next(system.process.stdout) for _ in range(4)]
        address = next(line for line in lines if "dashboard: " in line).split()[-1]
        assert address.startswith(f"{system.url}/login/once?code=")
        upload = next(line for line in lines if "/upload" in line)
        assert "Bearer $FERRYMAN_TOKEN" in upload
        assert "service=dock" in upload
        with urlopen(address, timeout=10) as page:
            assert b"Log in" in page.read()


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
    system = launch(tmp_path, *FREE, "--config", str(config))
    assert (system.process.wait(60), system.stop()) == (2, 2)
    assert "agents far: one of them" in " ".join(system.log.split())


@pytest.mark.slow  # the quick one: tests/unit/ferryman/test_config.py
def test_an_unknown_setting_is_refused_and_the_nearest_one_suggested(tmp_path):
    config = tmp_path / "ferryman.toml"
    config.write_text("[services.dock]\nruns_per_usr = 5\n")
    system = launch(tmp_path, *FREE, "--config", str(config), "--data-dir", str(tmp_path / "data"))
    assert system.process.wait(60) == 2
    system.stop()
    assert re.search(r"runs_per_usr.*did you mean runs_per_user", system.log)


def test_data_goes_where_the_users_data_go():
    assert default_data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/ferryman/dev")
    assert default_data_dir({"XDG_DATA_HOME": "relative"}) == default_data_dir({})
    assert default_data_dir({}) == Path.home() / ".local/share/ferryman/dev"


@pytest.mark.slow
def test_data_is_made_where_the_users_data_go(tmp_path):
    system = ready(launch(tmp_path, *FREE, XDG_DATA_HOME=str(tmp_path / "xdg")))
    system.stop()
    assert {path.name for path in (tmp_path / "xdg" / "ferryman" / "dev").iterdir()} == {
        "agent",
        "server",
    }


def test_a_reserved_port_is_given_to_the_agent_and_to_nobody_else():
    with reserved(0) as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        listen("127.0.0.1", port).close()
    with reserved(9000) as given:
        assert given == 9000
