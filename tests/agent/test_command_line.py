"""The agent's command line: the order of its options, its messages and exit codes."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
import typer

from client_agent import __main__, app
from client_agent.__main__ import check_last
from client_agent.settings.agent import AgentSection
from tests.kit.agent_http import calling
from tests.kit.each import each
from tests.kit.fake_sandbox import REPORT, FakeSandbox


@each(
    "given, parsed",
    [
        ("", ""),
        ("--port 0", "--port 0"),
        ("check", "check"),
        ("check --config x", "--config x check"),
        ("check --json --config x", "--config x check --json"),
        ("--config x check --json", "--config x check --json"),
        ("check --help", "check --help"),
        ("--name check", "--name check"),
    ],
)
def test_options_of_the_agent_may_follow_check(given, parsed):
    assert check_last(given.split()) == parsed.split()


NO, FULL, MANY = "Permission denied", "No space left on device", "Too many open files"


@each(
    "problem, code, message",
    [
        (OSError(errno.EACCES, NO, "/data/agent/results"), 73, "/data/agent: P"),
        (OSError(errno.ENOSPC, FULL), 73, "/data/agent: No space"),
        (OSError(errno.EMFILE, MANY), 71, MANY),
        (OSError(errno.EACCES, NO, "/dev/loop-control"), 71, "/dev/loop-control"),
    ],
)
def test_only_problems_of_its_folders_exit_as_such(monkeypatch, capsys, problem, code, message):
    async def fails(*_):
        raise problem

    monkeypatch.setattr(app, "serve", fails)
    with pytest.raises(typer.Exit) as caught:
        __main__._run(AgentSection(data_dir=Path("/data/agent")), None, AgentSection)
    assert caught.value.exit_code == code
    assert message in capsys.readouterr().err


async def test_limits_that_are_soft_on_this_host_are_logged_at_the_start(tmp_path, monkeypatch):
    report = replace(REPORT, enforcement={"disk": "soft", "pids": "hard"}, advice=("run as root",))

    async def self_test(_):
        return report

    monkeypatch.setattr(FakeSandbox, "self_test", self_test)
    with structlog.testing.capture_logs() as logs:
        async with calling(tmp_path):
            pass
    (line,) = [one for one in logs if one["event"] == "sandbox.soft_limits"]
    assert (line["limits"], line["advice"]) == (["disk"], ["run as root"])
