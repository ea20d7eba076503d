"""``make demo`` without make: shows each step and leaves nothing."""

import re
import subprocess
import sys
import uuid
from pathlib import Path

from tests.kit.dev_program import LIVE, ROOT, ended, environment, marked


def demo(folder: Path, mark: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    temporary = folder / "temporary"
    temporary.mkdir()
    env = environment(mark) | {"TMPDIR": str(temporary)} | variables
    script = ROOT / "scripts" / "demo.py"
    done = ended(sys.executable, "-P", script, env=env, cwd=temporary, status=None)
    assert [*temporary.iterdir()] == []
    return done


def test_the_demo_shows_each_step_and_leaves_nothing(tmp_path):
    mark = uuid.uuid4().hex
    done = demo(tmp_path, mark, FERRYMAN_AGENT__SLOTS="nonsense")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("     +")]
    states = ["Queued", "Processing", "Submitted", "Running", "Completed"]
    assert [what for what in shown if what not in LIVE] == states
    assert "output      residue_pairs: 26" in done.stdout
    assert re.search(r"[0-9.]*[1-9][0-9.]* ms  run\.sh ran", done.stdout)
    for piece in ("contacts.csv", "closer than 5 Å: 26 residue pairs", '"wall_s"'):
        assert piece in done.stdout
    assert "Failed (exit_code): run.sh ended with exit code 3" in done.stdout
    assert marked(mark) == []


def test_a_demo_that_cannot_run_says_why(tmp_path):
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'client_agent' in sys.orig_argv:\n"
        "    os.write(2, b'no sandbox: install bubblewrap')\n"
        "    os._exit(69)\n"
    )
    done = demo(tmp_path, PYTHONPATH=str(modules))
    assert done.returncode == 1
    assert "demo failed: server and agent did not start" in done.stderr
    assert "no sandbox: install bubblewrap" in done.stderr
