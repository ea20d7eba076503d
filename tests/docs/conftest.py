"""What the documentation says, run against a real server and agent."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.dev_program import ROOT, ended, environment, started

DOCUMENTED_URL = "http://127.0.0.1:5000"


@dataclass(frozen=True)
class Block:
    """A fenced block: ```` ```sh test ````."""

    kind: str
    """"sh test", "text output" …"""
    text: str
    line: int


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = (ROOT / document).read_text()
    return [
        Block(match[1].strip(), match[2], text.count("\n", 0, match.start()) + 1)
        for match in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def ran(block: Block, home: Path, variables: dict[str, str], places: dict[str, str]) -> str:
    """What a block printed that ended well, run as a user would, with things in other places."""
    text = block.text
    for place, there in places.items():
        text = text.replace(place, there)
    shell, python = ("bash", "-euo", "pipefail", "-c"), (sys.executable, "-P", "-c")
    words = (*(shell if block.kind.split()[0] == "sh" else python), text)
    programs = home.parent / "bin"
    programs.mkdir(exist_ok=True)
    quoted = shlex.quote(sys.executable)
    (programs / "ferryman").write_text(f'#!/bin/sh\nexec {quoted} -P -m ferryman "$@"\n')
    (programs / "ferryman").chmod(0o755)
    env = {**variables, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = ended(*words, cwd=home, env=env, status=None, **both)
    assert done.returncode == 0, f"line {block.line}: {done.stdout}"
    return done.stdout


Run = Callable[[Block], str]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs a block in a folder of its own; a fresh server for each document."""
    home = tmp_path / "home"
    home.mkdir()
    with started(tmp_path / "system") as system:
        variables = {**environment(), "FERRYMAN_URL": system.url, "FERRYMAN_USER": "ada"}
        places = {DOCUMENTED_URL: system.url}

        def run_block(block: Block) -> str:
            return ran(block, home, variables, places).replace(system.url, DOCUMENTED_URL)

        yield run_block
