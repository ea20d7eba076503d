"""The commands of the checklist, against a real server and agent with tokens."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid

import pytest

from tests.docs.conftest import blocks
from tests.docs.test_blocks import shown
from tests.kit.dev_program import environment
from tests.kit.programs import Program

PAGE = "docs/security.md"
OUTPUT = "text output"


@pytest.mark.slow
def test_each_command_shows_what_the_page_says(tmp_path):
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("server-tokens", "agent-token"):
        (etc / name).write_text(f"{uuid.uuid4().hex}\n")
        (etc / name).chmod(0o640)
    (etc / "agent.toml").write_text(f'[agent]\ntokens = {{ file = "{etc}/agent-token" }}\n')
    mark = uuid.uuid4().hex
    agent = Program("client_agent", tmp_path, mark, "--config", str(etc / "agent.toml"))
    (etc / "server.toml").write_text(
        f'[server]\ntokens = {{ file = "{etc}/server-tokens" }}\n[services.example]\nmax_runs = 1\n'
        f'[agents.node-1]\nurl = "{agent.url}"\ntoken = {{ file = "{etc}/agent-token" }}\n'
    )
    server = Program("server", tmp_path, mark, "--config", str(etc / "server.toml"))
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m ferryman "$@"\n'
    (tmp_path / "ferryman").write_text(program)
    (tmp_path / "ferryman").chmod(0o755)
    variables = {
        **environment(mark),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "FERRYMAN_URL": server.url,
        "FERRYMAN_TOKEN": (etc / "server-tokens").read_text().strip(),
        "FERRYMAN_AGENT__DATA_DIR": str(tmp_path / "check"),
    }
    places = {
        "https://ferryman.example.org": server.url,
        "http://127.0.0.1:9000": agent.url,
        "/etc/ferryman": str(etc),
    }
    agent.start()
    server.start()
    output, ran = "", 0
    try:
        for block in blocks(PAGE):
            text = block.text
            if block.kind == "sh check":
                for place, there in places.items():
                    text = text.replace(place, there)
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", text],
                    cwd=tmp_path,
                    env=variables,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                output, ran = done.stdout, ran + 1
                assert done.returncode == 0, f"{PAGE}:{block.line}: {output}"
            elif block.kind == OUTPUT:
                assert shown(text).search(output), f"{PAGE}:{block.line}: it printed\n{output}"
            else:
                assert block.kind in ("sh", "toml", ""), block
    finally:
        for one in (server, agent):
            one.kill()
    assert ran >= 10
