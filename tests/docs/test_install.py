"""The commands of the page about installing; those for root are in tests/deploy/test_package.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.docs.conftest import blocks
from tests.support.dev_program import ROOT, environment


@pytest.mark.slow
def test_pipx_installs_both_programs(tmp_path):
    (block,) = (block for block in blocks("docs/install.md") if block.kind == "sh pipx")
    tools, programs = tmp_path / "tools", tmp_path / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
    pip = [str(tools / "bin/python"), "-m", "pip", "--quiet", "install", "pipx>=1.7,<2"]
    subprocess.run(pip, check=True)
    variables = {
        **environment(),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(programs),
        "PATH": f"{programs}:{tools}/bin:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{block.text}\nferryman agent --help"],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "ferryman 0." in done.stdout
    assert "--data-dir" in done.stdout
    assert (programs / "ferryman").exists()
