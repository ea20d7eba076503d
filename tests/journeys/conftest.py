"""A real server and a real agent, as two processes, for everything in this folder."""

import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferryman.dev import reserved
from tests.kit import command_line
from tests.kit.command_line import Said
from tests.kit.dev_program import DevProgram, started

SETTINGS = """
[services.example]
[services.dock]
timeout = "5m"
[agent]
slots = 5
grace = "1s"
[agents.mine]
url = "http://localhost:{}"
services = ["dock", "example"]
[agents.far]
url = "http://[::1]:9"
services = ["dock"]
"""


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProgram]:
    """One for all tests of this process; Ctrl-C ends it."""
    if shutil.which("bwrap") is None:
        pytest.fail("bubblewrap is missing: scripts/setup installs it")
    folder = tmp_path_factory.mktemp("system")
    for module in ("server", "client_agent", "shared"):  # a user's own, where it is started
        (folder / f"{module}.py").write_text("raise SystemExit('not this one')\n")
    config = folder / "ferryman.toml"
    with reserved(0) as port:
        config.write_text(SETTINGS.format(port))
        with started(folder, "--config", str(config), stop=signal.SIGINT) as running:
            yield running


@pytest.fixture
def ferryman(system: DevProgram, tmp_path: Path, monkeypatch) -> Callable[..., Said]:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: Any = {"FERRYMAN_USER": "ada", "FERRYMAN_SERVICE": "example"}
    return partial(command_line.run, FERRYMAN_URL=system.url, **names)


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[..., Path]:
    """Makes a bundle: the script, and files by name."""

    def make(script: str, **files: str) -> Path:
        folder = tmp_path / f"bundle-{uuid.uuid4().hex[:6]}"
        for name, text in {"run.sh": script, **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return make
