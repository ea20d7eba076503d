"""What the documentation says, run against a real server and agent."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.dev_program import ROOT, environment, started

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


Run = Callable[[Block], str]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs a block as a user would, in a folder of its own; a fresh server for each document."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "ferryman"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m ferryman "$@"\n')
    command.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    with started(tmp_path / "system") as system:

        def run_block(block: Block) -> str:
            text = block.text.replace(DOCUMENTED_URL, system.url)
            language = block.kind.split()[0]
            words = {
                "sh": ["bash", "-euo", "pipefail", "-c", text],
                "python": [sys.executable, "-P", "-c", text],
            }[language]
            done = subprocess.run(
                words,
                cwd=home,
                env={
                    **environment(),
                    "HOME": str(home),
                    "PATH": f"{programs}:{os.environ['PATH']}",
                    "FERRYMAN_URL": system.url,
                    "FERRYMAN_USER": "ada",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"line {block.line}: {done.stdout}"
            return done.stdout.replace(system.url, DOCUMENTED_URL)

        yield run_block
