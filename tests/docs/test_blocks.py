"""Every block that is marked as runnable runs, and prints what the next block says."""

import os
import re
import sys
import tomllib
import uuid

import pytest

import client_agent.settings.agent
import server.settings.load
from tests.docs.conftest import Block, Run, blocks, ran
from tests.kit.dev_program import ROOT, ended, environment
from tests.kit.programs import Program

DOCUMENTS = ("README.md", "docs/guide.md", "docs/cli.md", "docs/sdk.md")
RUNNABLE = {"sh test", "python test"}
OUTPUT = {"text output", "json output"}
KNOWN = {*RUNNABLE, *OUTPUT, "sh", "python", "json", "html", "toml test", ""}


def shown(expected: str) -> re.Pattern[str]:
    """Lines that must appear in that order; ``…`` stands for anything."""
    lines = [
        r"\s+".join(re.escape(word) for word in line.split()).replace("…", ".*?")
        for line in expected.strip().splitlines()
    ]
    return re.compile(r"^\s*" + r"(?:.*\n)*?\s*".join(lines), re.MULTILINE)


def compared(block: Block, output: str, document: str) -> None:
    where = f"{document}:{block.line}: the block above printed"
    assert shown(block.text).search(output), f"{where}\n{output}"


def test_the_comparison_can_fail():
    output = "  +0.00s  Queued   x\n+1.0s Running\nsaved r.zip (3 B)\n"
    assert shown("… Queued …\nsaved r.zip …\n").search(output)
    for other in ("saved r.zip …\n… Queued …\n", "… Queued …\n… Cancelled …\n"):
        assert not shown(other).search(output)


@pytest.mark.parametrize(
    "document",
    [pytest.param(one, marks=[pytest.mark.slow] * (one != "README.md")) for one in DOCUMENTS],
)
def test_what_can_be_run_runs(document: str, run: Run):
    output, count = "", 0
    for block in blocks(document):
        assert block.kind in KNOWN, f"{document}:{block.line}: what is a {block.kind!r} block?"
        if block.kind in RUNNABLE:
            output = run(block)
            count += 1
        elif block.kind in OUTPUT:
            compared(block, output, document)
    assert count >= 2


@pytest.mark.slow
def test_each_command_of_the_checklist_shows_what_its_page_says(tmp_path):
    etc, home = tmp_path / "etc", tmp_path / "home"
    for folder in (etc, home):
        folder.mkdir()
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
    variables = {
        **environment(mark),
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
    output, count = "", 0
    try:
        for block in blocks("docs/security.md"):
            if block.kind == "sh check":
                output, count = ran(block, home, variables, places), count + 1
            elif block.kind == "text output":
                compared(block, output, "docs/security.md")
            else:
                assert block.kind in ("sh", "toml", ""), block
    finally:
        for one in (server, agent):
            one.kill()
    assert count >= 10


URLS = {
    f"SERVICE_DOCKING_{name}_URL": f"http://client:9000/{name}"
    for name in ("UPLOAD", "DOWNLOAD", "TERMINATE")
}
"""As docs/from-job-orchestrator.md goes on with them."""


def test_settings_and_variables_of_pages_are_settings(tmp_path, monkeypatch):
    pages = ("docs/operate.md", "docs/from-job-orchestrator.md")
    examples = [block for page in pages for block in blocks(page) if block.kind == "toml test"]
    assert len(examples) >= 5
    for block in examples:
        file = tmp_path / "example.toml"
        file.write_text(block.text)
        if "agent" in tomllib.loads(block.text):
            client_agent.settings.agent.load(file, {}, {})
        server.settings.load.read(file, {}, URLS)
    text = (ROOT / "docs/operate.md").read_text()
    for variable, value in re.findall(r"`(FERRYMAN_[A-Za-z_]+)='?([^`']+)'?`", text):
        monkeypatch.setenv(variable, value)
    read = server.settings.load.read(None, {}, os.environ)
    assert (read.server.port, len(read.server.all_tokens())) == (8080, 2)
    assert read.services["haddock"].max_runs == 20
    assert client_agent.settings.agent.load(None, {}, os.environ).slots == 4


@pytest.mark.slow
def test_pipx_installs_both_programs(tmp_path):
    (block,) = (block for block in blocks("docs/install.md") if block.kind == "sh pipx")
    tools, programs = tmp_path / "tools", tmp_path / "bin"
    ended(sys.executable, "-m", "venv", tools)
    ended(tools / "bin/python", "-m", "pip", "--quiet", "install", "pipx>=1.7,<2")
    variables = {
        **environment(),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(programs),
        "PATH": f"{programs}:{tools}/bin:{os.environ['PATH']}",
    }
    text = f"{block.text}\nferryman agent --help"
    done = ended("bash", "-euo", "pipefail", "-c", text, cwd=ROOT, env=variables)
    assert "ferryman 0." in done.stdout
    assert "--data-dir" in done.stdout
    assert (programs / "ferryman").exists()
